"""Kernels that compile in the background: jobs and their threads, and what calls do meanwhile."""

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
import torch

import cuconv
from cuconv import NotReady, call_cache, select
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import background, compiler
from tests.cuconv.fake_gpu import Recorder

X, WEIGHT = torch.zeros(2, 16, 5, 7), torch.zeros(9, 16, 1, 1)
EVERY = {algorithm.source.stem for algorithm in ALGORITHMS.values()}


class StandIn:
    is_stale, error = False, None


class Compiler:
    """Stands for compiler.cubin: compiles when it is told to."""

    def __init__(self):
        self.allowed, self.asked, self.error = threading.Event(), [], None

    def __call__(self, variant):
        self.asked.append(variant.source)
        assert self.allowed.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def nvrtc(monkeypatch):
    nvrtc = Compiler()
    monkeypatch.setattr(compiler, "cubin", nvrtc)
    yield nvrtc
    nvrtc.allowed.set()
    background.wait_for_kernels()
    background._failed.clear()


def kernels(*names):
    return [KernelVariant.of(name, "sm_90a", {"FILTERS": 8}) for name in names]


def test_what_depends_on_a_job_is_outdated_once_all_kernels_are_there(nvrtc):
    job, early, late = background.compile_later(kernels("a", "b")), StandIn(), StandIn()
    job.replaces(early)
    assert background.compile_later(kernels("b", "a")) is job and not early.is_stale
    nvrtc.allowed.set()
    job.wait()
    job.replaces(late)
    assert early.is_stale and late.is_stale and sorted(nvrtc.asked) == ["a", "b"]
    assert background.compile_later(kernels("a", "b")) is not job, "a job that has ended is begun again"


def test_a_kernel_that_does_not_compile_leaves_calls_as_they_are(nvrtc):
    nvrtc.error = compiler.CompileError("no")
    nvrtc.allowed.set()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2):
            job, stand_in = background.compile_later(kernels("a", *["b"] * number)), StandIn()
            job.replaces(stand_in)
            job.wait()
            assert stand_in.error is not None and not stand_in.is_stale
    assert [str(one.message).endswith("no") for one in said] == [True, True] and nvrtc.asked.count("a") == 1


def test_threads_end_when_nothing_is_left(nvrtc):
    job = background.compile_later(kernels(*"abcdefgh"))
    threads = [thread for thread in threading.enumerate() if thread.name == "cuconv compiles"]
    assert 1 <= len(threads) <= background.MAX_THREADS and not any(thread.daemon for thread in threads)
    nvrtc.allowed.set()
    job.wait()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("daemon", [False, True])
def test_the_program_ends_in_the_middle(tmp_path, daemon):
    """Also where a daemon thread has asked; what is being compiled is finished, and nothing crashes."""
    code = f"""
import threading
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import background
source, variants = ALGORITHMS["fp16x3"].source, ALGORITHMS["fp16x3"].variants("sm_90a")
kernels = [KernelVariant.of(source, "sm_90a", macros) for macros in variants]
asking = threading.Thread(target=background.compile_later, args=(kernels,), daemon={daemon})
asking.start(), asking.join()
"""
    environment = {**os.environ, "CUCONV_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "") and len(list(tmp_path.iterdir())) < 102


def test_threads_go_on_when_the_main_thread_has_ended(tmp_path):
    code = """
import threading
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import background
def late():
    threading.main_thread().join()
    source = ALGORITHMS["two_stage"].source
    background.compile_later([KernelVariant.of(source, "sm_90a", {**ALGORITHMS["two_stage"].variants("sm_90a")[0]})])
    background.wait_for_kernels()
threading.Thread(target=late).start()
"""
    environment = {**os.environ, "CUCONV_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "") and len(list(tmp_path.iterdir())) == 1


def test_without_threads_calls_keep_what_they_have(nvrtc, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job, stand_in = background.compile_later(kernels("a", "b")), StandIn()
    job.replaces(stand_in)
    job.wait()
    assert "thread" in str(stand_in.error) and not nvrtc.asked
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "cubin", nvrtc)
    nvrtc.allowed.set()
    background.compile_later(kernels("a", "b")).wait()
    assert sorted(nvrtc.asked) == ["a", "b"]


def planned_algorithm():
    """The algorithm of the calls' plan."""
    return cuconv.plan(cuconv.ConvProblem(2, 16, 5, 7, 9, 1, 1), cuconv.device.H200).algorithm


def planned(algorithm="auto"):
    """The algorithm of the newest launch, and the plan's."""
    launches, _, _ = Recorder.enqueued[-1]
    problem = cuconv.ConvProblem(2, 16, 5, 7, 9, 1, 1)
    return launches[-1].source.stem, cuconv.plan(problem, cuconv.device.H200, algorithm).algorithm


def test_a_call_takes_the_next_best_plan_whose_kernels_are_there(cuda, nvrtc):
    best = cuconv.plan(cuconv.ConvProblem(2, 16, 5, 7, 9, 1, 1), cuconv.device.H200).algorithm
    cuda.missing = {best}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            cuconv.conv2d(X, WEIGHT)
            taken, wanted = planned()
            assert taken != wanted == best
    assert len(Recorder.made) == 1
    cuda.missing = set()
    nvrtc.allowed.set()
    background.wait_for_kernels()
    assert [source.stem for source in nvrtc.asked] == [best]
    cuconv.conv2d(X, WEIGHT)
    assert planned() == (best, best) and len(Recorder.made) == 2


def all_compiled(cuda, nvrtc):
    """Let all kernels compile, and wait until they are there."""
    cuda.missing = set()
    nvrtc.allowed.set()
    background.wait_for_kernels()


@pytest.fixture
def captures(cuda, nvrtc):
    """A machine on which the kernels of the plan must be compiled, and no capture has been warned of."""
    call_cache._warn_of_capture.cache_clear()
    cuda.missing = {planned_algorithm()}
    return cuda


NOT_READY = r"captures a slower kernel .* call once, then cuconv.wait_for_kernels\(\), and call once more"


def test_a_capture_uses_what_is_there_and_warns(captures, nvrtc):
    cuconv.conv2d(X, WEIGHT)
    all_compiled(captures, nvrtc)
    captures.capture = 5
    with pytest.warns(UserWarning, match=NOT_READY):
        cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.made) == 1
    captures.capture = 0
    cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.made) == 2


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("call", ["conv2d", "one image", "prepared"])
def test_a_capture_of_a_stand_in_warns_once(captures, first, call):
    layer, x = cuconv.prepare(WEIGHT), X[0] if call == "one image" else X
    captures.missing = EVERY - {"direct", "two_stage"}

    def convolve():
        layer(x) if call == "prepared" else cuconv.conv2d(x, WEIGHT)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not first:
            convolve()
    captures.capture = 5
    with pytest.warns(UserWarning, match=NOT_READY) as said:
        for _ in range(2):
            convolve()
    assert len(said) == 1 and Recorder.enqueued


@pytest.mark.parametrize("first", [False, True])
def test_a_capture_warns_where_another_library_computes_meanwhile(captures, first):
    captures.missing = EVERY
    for captures.capture in (5,) if first else (0, 5):
        with pytest.warns(UserWarning, match=NOT_READY) if captures.capture else nullcontext(), pytest.raises(NotReady):
            cuconv.conv2d(X, WEIGHT, algorithm="ready")


def test_a_capture_of_the_fastest_kernels_neither_warns_nor_is_asked_for(captures, nvrtc, monkeypatch):
    cuconv.conv2d(X, WEIGHT)
    all_compiled(captures, nvrtc)
    cuconv.conv2d(X, WEIGHT)
    captures.capture = 5
    monkeypatch.setattr(call_cache, "capture_of", lambda stream: pytest.fail("a final call asks for a capture"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuconv.conv2d(X, WEIGHT)
    assert planned()[0] == planned()[1]


def test_a_capture_does_not_warn_where_no_faster_kernel_will_come(captures, nvrtc):
    nvrtc.error = compiler.CompileError("no")
    cuconv.conv2d(X, WEIGHT)
    with pytest.warns(UserWarning, match="does not compile"):
        all_compiled(captures, nvrtc)
    captures.capture = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuconv.conv2d(X, WEIGHT)


def test_where_warnings_are_errors_a_capture_ends_before_a_launch(captures, nvrtc):
    captures.capture = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=NOT_READY):
            cuconv.conv2d(X, WEIGHT)
        assert not Recorder.enqueued
        captures.capture = 0
        cuconv.conv2d(X, WEIGHT)
        all_compiled(captures, nvrtc)
        cuconv.conv2d(X, WEIGHT)
        captures.capture = 6
        cuconv.conv2d(X, WEIGHT)
    assert planned()[0] == planned()[1]


def test_ready_refuses_to_wait(cuda, nvrtc):
    cuda.missing = EVERY
    for _ in range(2):
        with pytest.raises(NotReady):
            cuconv.conv2d(X, WEIGHT, algorithm="ready")
    assert not Recorder.made
    cuda.missing = set()
    nvrtc.allowed.set()
    background.wait_for_kernels()
    cuconv.conv2d(X, WEIGHT, algorithm="ready")
    assert len(Recorder.made) == 1


@pytest.mark.parametrize("how", ["waiting", "deterministic"])
@pytest.mark.parametrize("algorithm", ["auto", "ready"])
def test_stand_ins_are_left_by_who_waits(cuda, nvrtc, how, algorithm):
    cuda.missing = EVERY if algorithm == "ready" else {planned_algorithm()}
    with suppress(NotReady):
        cuconv.conv2d(X, WEIGHT, algorithm=algorithm)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(how == "deterministic")
        with background.waiting() if how == "waiting" else nullcontext():
            cuconv.conv2d(X, WEIGHT, algorithm=algorithm)
    finally:
        torch.use_deterministic_algorithms(before)
    assert planned()[0] == planned()[1]


def test_who_waits_makes_no_other_thread_wait(cuda, nvrtc):
    cuda.missing = {planned_algorithm()}
    with ThreadPoolExecutor(1) as thread, background.waiting():
        assert background.waits() and not thread.submit(background.waits).result()
        thread.submit(cuconv.conv2d, X, WEIGHT).result()
        assert planned()[0] != planned()[1], "the other thread's call takes a stand-in"
        cuconv.conv2d(X, WEIGHT)
        assert planned()[0] == planned()[1]
        with background.waiting():
            pass
        assert background.waits(), "blocks can be nested"
    assert not background.waits()


def test_a_stand_in_stays_where_its_successor_cannot_be_made(cuda, nvrtc, monkeypatch):
    cuda.missing = {planned_algorithm()}
    cuconv.conv2d(X, WEIGHT)
    cuda.missing = set()
    nvrtc.allowed.set()
    background.wait_for_kernels()

    def fail(*arguments):
        raise MemoryError("no room for a module")

    monkeypatch.setattr(call_cache, "LaunchSequence", fail)
    with pytest.warns(UserWarning, match="no room"):
        cuconv.conv2d(X, WEIGHT)
    cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.enqueued) == 3 and planned()[0] != planned()[1]


def test_auto_waits_where_no_kernel_is_there_and_warns_once(cuda, nvrtc):
    cuda.missing = EVERY
    nvrtc.allowed.set()
    call_cache._warn_of_waiting.cache_clear()
    with pytest.warns(UserWarning, match="precompile"):
        cuconv.conv2d(X, WEIGHT)
    assert planned()[0] == planned()[1] and not nvrtc.asked, "it compiles in its own thread"


@pytest.mark.parametrize("how", ["named", "batch_invariant", "waiting", "deterministic"])
def test_who_wants_one_algorithm_or_equal_bits_waits(cuda, nvrtc, how):
    algorithm = {"named": "tf32x3_gemm", "batch_invariant": "batch_invariant"}.get(how, "auto")
    problem = cuconv.ConvProblem(2, 16, 5, 7, 9, 1, 1)
    cuda.missing = {cuconv.plan(problem, cuconv.device.H200, algorithm).algorithm}
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(how == "deterministic")
        if how == "waiting":
            with background.waiting():
                cuconv.conv2d(X, WEIGHT, algorithm=algorithm)
        else:
            cuconv.conv2d(X, WEIGHT, algorithm=algorithm)
    finally:
        torch.use_deterministic_algorithms(before)
    assert planned(algorithm)[0] == planned(algorithm)[1] and not nvrtc.asked


def test_alternatives_are_in_order_and_not_much_slower():
    problem, device = cuconv.ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1), cuconv.device.H200
    for residual in (False, True):
        plans = list(select.alternatives(problem, device, True, residual))
        assert plans[0] == select.plan(problem, device, "auto", True, residual) and len(set(plans)) == len(plans) > 20
        times = [select.predicted_us(problem, device, plan) for plan in plans]
        assert max(times) <= select.MAX_SLOWDOWN * min(times) * 1.5
