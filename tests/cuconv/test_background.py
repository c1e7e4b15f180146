"""Kernels that compile in the background: jobs and their threads, and what calls do meanwhile."""

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress

import pytest
import torch

import cuconv
from cuconv import NotReady, call_cache, select
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
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


BEGIN = """
import threading
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import background
def kernels(name):
    source, variants = ALGORITHMS[name].source, ALGORITHMS[name].variants("sm_90a")
    return [KernelVariant.of(source, "sm_90a", macros) for macros in variants]
"""
ASK = """
asking = threading.Thread(target=background.compile_later, args=(kernels("fp16x3"),), daemon={daemon})
asking.start(), asking.join()
"""
ASK_LATE = """
def late():
    threading.main_thread().join()
    background.compile_later(kernels("two_stage")[:1])
    background.wait_for_kernels()
threading.Thread(target=late).start()
"""


@pytest.mark.parametrize(
    ("code", "compiled"),
    [(ASK.format(daemon=False), range(102)), (ASK.format(daemon=True), range(102)), (ASK_LATE, [1])],
    ids=["in the middle", "in the middle, by a daemon", "before its threads"],
)
def test_the_program_ends(tmp_path, code, compiled):
    """The end finishes what is being compiled, leaves what waits and crashes nothing; other threads may go on."""
    command = [sys.executable, "-c", BEGIN + code]
    environment = {**os.environ, "CUCONV_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "") and len(list(tmp_path.iterdir())) in compiled


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


PROBLEM = cuconv.ConvProblem(2, 16, 5, 7, 9, 1, 1)


def planned(algorithm="auto"):
    """The algorithm of the calls' plan."""
    return cuconv.plan(PROBLEM, H200, algorithm).algorithm


def launched():
    """The algorithm of the newest launch."""
    return Recorder.enqueued[-1][0][-1].source.stem


def all_compiled(cuda, nvrtc):
    """Let all kernels compile, and wait until they are there."""
    cuda.missing = set()
    nvrtc.allowed.set()
    background.wait_for_kernels()


@contextmanager
def no_warnings():
    """Make every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def deterministic():
    """Let torch use deterministic algorithms only."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.fixture
def missing(cuda, nvrtc):
    """A machine on which the kernels of the plan must be compiled, and nothing was warned of."""
    call_cache.warn_of_capture.cache_clear()
    call_cache._warn_of_waiting.cache_clear()
    cuda.missing = {planned()}
    return cuda


def test_a_call_takes_the_next_best_plan_whose_kernels_are_there(missing, nvrtc):
    with no_warnings():
        for _ in range(2):
            cuconv.conv2d(X, WEIGHT)
            assert launched() != planned()
    assert len(Recorder.made) == 1
    all_compiled(missing, nvrtc)
    assert [source.stem for source in nvrtc.asked] == [planned()]
    cuconv.conv2d(X, WEIGHT)
    assert launched() == planned() and len(Recorder.made) == 2


def test_after_an_error_that_may_pass_kernels_are_compiled_again(missing, nvrtc):
    nvrtc.error = MemoryError("no room")
    nvrtc.allowed.set()
    with no_warnings():
        cuconv.conv2d(X, WEIGHT)
        background.wait_for_kernels()
        nvrtc.error = None
        cuconv.conv2d(X, WEIGHT)
        assert launched() != planned()
        all_compiled(missing, nvrtc)
        cuconv.conv2d(X, WEIGHT)
    assert launched() == planned() and len(nvrtc.asked) == 2


# Captures of CUDA graphs


NOT_READY = r"cuconv\.wait_for_kernels\(\)"


def test_a_capture_uses_what_is_there_and_warns(missing, nvrtc):
    cuconv.conv2d(X, WEIGHT)
    all_compiled(missing, nvrtc)
    missing.capture = 5
    with pytest.warns(UserWarning, match=NOT_READY):
        cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.made) == 1
    missing.capture = 0
    cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.made) == 2


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("call", ["conv2d", "one image", "prepared"])
def test_a_capture_of_a_stand_in_warns_once(missing, first, call):
    layer, x = cuconv.prepare(WEIGHT), X[0] if call == "one image" else X
    missing.missing = EVERY - {"direct", "two_stage"}

    def convolve():
        layer(x) if call == "prepared" else cuconv.conv2d(x, WEIGHT)

    with no_warnings():
        if not first:
            convolve()
    missing.capture = 5
    with pytest.warns(UserWarning, match=NOT_READY) as said:
        for _ in range(2):
            convolve()
    assert len(said) == 1 and Recorder.enqueued


@pytest.mark.parametrize("first", [False, True])
def test_a_capture_warns_where_another_library_computes_meanwhile(missing, first):
    missing.missing = EVERY
    for missing.capture in (5,) if first else (0, 5):
        with pytest.warns(UserWarning, match=NOT_READY) if missing.capture else nullcontext(), pytest.raises(NotReady):
            cuconv.conv2d(X, WEIGHT, algorithm="ready")


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_does_not_warn_where_no_faster_kernel_will_come(missing, nvrtc, monkeypatch, fails):
    """With the fastest kernels a call does not even ask the driver for a capture."""
    nvrtc.error = compiler.CompileError("no") if fails else None
    cuconv.conv2d(X, WEIGHT)
    with pytest.warns(UserWarning) if fails else nullcontext():
        all_compiled(missing, nvrtc)
    if not fails:
        cuconv.conv2d(X, WEIGHT)
        monkeypatch.setattr(call_cache, "capture_of", lambda stream: pytest.fail("a final call asks"))
    missing.capture = 5
    with no_warnings():
        cuconv.conv2d(X, WEIGHT)
    assert (launched() == planned()) is not fails


def test_where_warnings_are_errors_a_capture_ends_before_a_launch(missing, nvrtc):
    missing.capture = 5
    with no_warnings():
        with pytest.raises(UserWarning, match=NOT_READY):
            cuconv.conv2d(X, WEIGHT)
        assert not Recorder.enqueued
        missing.capture = 0
        cuconv.conv2d(X, WEIGHT)
        all_compiled(missing, nvrtc)
        cuconv.conv2d(X, WEIGHT)
        missing.capture = 6
        cuconv.conv2d(X, WEIGHT)
    assert launched() == planned()


# Calls that wait, and calls that refuse to


def test_ready_refuses_to_wait(missing, nvrtc):
    missing.missing = EVERY
    for _ in range(2):
        with pytest.raises(NotReady):
            cuconv.conv2d(X, WEIGHT, algorithm="ready")
    assert not Recorder.made
    all_compiled(missing, nvrtc)
    cuconv.conv2d(X, WEIGHT, algorithm="ready")
    assert len(Recorder.made) == 1


@pytest.mark.parametrize("before", [None, "auto", "ready"])
@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        ("tf32x3_gemm", nullcontext),
        ("batch_invariant", nullcontext),
        *((algorithm, how) for algorithm in ("auto", "ready") for how in (background.waiting, deterministic)),
    ],
)
def test_who_wants_one_algorithm_or_equal_bits_waits(missing, nvrtc, algorithm, how, before):
    """Also where a call before has left a stand-in; it compiles in its own thread."""
    missing.missing = EVERY if before == "ready" else {planned(), planned(algorithm if how is nullcontext else "auto")}
    with suppress(NotReady):
        if before:
            cuconv.conv2d(X, WEIGHT, algorithm=before)
    with how():
        cuconv.conv2d(X, WEIGHT, algorithm=algorithm)
    assert launched() == planned(algorithm if how is nullcontext else "auto")
    assert before or not nvrtc.asked


def test_auto_waits_where_no_kernel_is_there_and_warns_once(missing, nvrtc):
    missing.missing = EVERY
    nvrtc.allowed.set()
    with pytest.warns(UserWarning, match="precompile") as said:
        cuconv.conv2d(X, WEIGHT)
        cuconv.conv2d(X, WEIGHT, relu=True)
    assert launched() == planned() and not nvrtc.asked and len(said) == 1


def test_who_waits_makes_no_other_thread_wait(missing):
    with ThreadPoolExecutor(1) as thread, background.waiting():
        assert background.waits() and not thread.submit(background.waits).result()
        thread.submit(cuconv.conv2d, X, WEIGHT).result()
        assert launched() != planned(), "the other thread's call takes a stand-in"
        cuconv.conv2d(X, WEIGHT)
        assert launched() == planned()
        with background.waiting():
            pass
        assert background.waits(), "blocks can be nested"
    assert not background.waits()


def test_a_stand_in_stays_where_its_successor_cannot_be_made(missing, nvrtc, monkeypatch):
    cuconv.conv2d(X, WEIGHT)
    all_compiled(missing, nvrtc)

    def fail(*arguments):
        raise MemoryError("no room for a module")

    monkeypatch.setattr(call_cache, "LaunchSequence", fail)
    with pytest.warns(UserWarning, match="no room"):
        cuconv.conv2d(X, WEIGHT)
    with no_warnings():
        cuconv.conv2d(X, WEIGHT)
    assert len(Recorder.enqueued) == 3 and launched() != planned()


@pytest.mark.parametrize("residual", [False, True])
def test_alternatives_begin_with_the_plan_and_are_not_much_slower(residual):
    problem = cuconv.ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1)
    plans = list(select.alternatives(problem, H200, True, residual))
    assert plans[0] == select.plan(problem, H200, "auto", True, residual) and len(set(plans)) == len(plans) > 1
    times = [select.predicted_us(problem, H200, plan) for plan in plans]
    assert max(times) <= select.MAX_SLOWDOWN * min(times) * 1.5
