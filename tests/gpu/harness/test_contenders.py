"""Contenders on a GPU: every offer computes the convolution, called and captured, and torch's modes stay apart."""

import gc
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem, reference
from cuconv.algorithms import offering
from cuconv.algorithms.direct import direct
from cuconv.algorithms.plain_pointwise import plain_pointwise
from cuconv.algorithms.tf32x3 import tf32x3_shallow
from cuconv.algorithms.winograd import fp16x3_winograd
from harness import libcudnn
from harness.contenders import cudnn_engines, torch_cudnn, workspace
from harness.contenders.base import NoMemory, NotRunnable, Offer, Operands, Prepared, load
from harness.contenders.registry import CLASSIC_ALGORITHMS, PROVIDERS
from harness.precision import FP32
from harness.stopwatch import profiler
from harness.sweep.records import read
from tests.gpu.problems import operands, pads, poisoned_output, rel_l2_error

GEMM_LIKE, WINOGRAD = 1e-5, 5e-3  # relative L2; TF32 stands at 3e-4, cuDNN's Winograd of 5x5 at 1e-3

PROBLEMS = [  # layers of the networks first, then odd sizes
    ConvProblem(1, 832, 7, 7, 32, 1, 1),
    ConvProblem(8, 64, 14, 14, 64, 3, 3, 1, 1),
    ConvProblem(1, 48, 7, 7, 128, 5, 5, 2, 2),
    ConvProblem(3, 17, 9, 14, 31, 1, 1),
    ConvProblem(2, 5, 13, 6, 9, 3, 3, 1, 1),
    ConvProblem(2, 12, 11, 8, 20, 7, 7, 3, 3),
    ConvProblem(1, 3, 5, 7, 2, 3, 5, 0, 2),
]
MUST_RUN = {
    "cuconv": {"auto", "batch_invariant", *offering(FP32)},
    "cuconv_prepared": {"auto"},
    "cudnn": {"implicit_gemm", "implicit_precomp_gemm", "gemm"},
    "cudnn_engine": set(),  # cuDNN names them: at least three
    "torch": {"default", "benchmark", "deterministic"},
    "cublas": {"bmm"},
}

LARGER_FILTERS = {"fp16x3", "fp16x3_winograd"}
POINTWISE = {"fp16x3_pointwise"}
OTHER_LAYERS = {"depthwise", "gemv"}  # few channels a group; one output pixel an image

load = cache(load)


@cache
def case(problem: ConvProblem) -> tuple[Operands, torch.Tensor]:
    """Operands and the float64 result."""
    x, weight = operands(problem)
    return Operands(x, weight, poisoned_output(problem)), reference.conv2d(x, weight, **problem.geometry)


def offers_of(provider: str, problem: ConvProblem) -> dict[str, Offer]:
    offers = load(provider).offers(problem, case(problem)[0])
    names = [offer.algorithm for offer in offers]
    assert len(set(names)) == len(names) > 0
    assert all(offer.provider == provider and offer.precision == "fp32" for offer in offers)
    return dict(zip(names, offers, strict=True))


def prepared_and_called(offer: Offer) -> Prepared | None:
    """The call where it runs; None where it is refused, in prepare() or at the first call, for a good reason."""
    try:
        prepared = offer.prepare()
        prepared.call()
    except NotRunnable as refusal:
        assert refusal.status == "unsupported", f"{offer.algorithm}: {refusal}"
        assert str(refusal), f"{offer.algorithm} does not say why"
        return None
    return prepared


def allocated() -> int:
    """The bytes of torch's tensors on the GPU that something still uses: cuDNN's graphs are in reference cycles."""
    gc.collect()
    return torch.cuda.memory_allocated()


def tolerance(offer: Offer, problem: ConvProblem) -> float:
    """Winograd's tolerance where the algorithm is one, or may be one by torch's choice; never with 1x1 filters."""
    may_be_winograd = offer.provider == "torch" or re.match(r"winograd|(.*_)?eng[56](_|$)", offer.algorithm)
    return WINOGRAD if may_be_winograd and problem.filter_area > 1 else GEMM_LIKE


def captured(prepared: Prepared) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A CUDA graph of one call, captured as the timing does, and the output that it writes."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            output = prepared.call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, output


def refusing(problem: ConvProblem) -> set[str]:
    """Algorithms of cuConv that are made for other problems."""
    names = OTHER_LAYERS | (LARGER_FILTERS if problem.filter_area == 1 else POINTWISE)
    depth = problem.c * problem.filter_area
    if problem.kw not in fp16x3_winograd.COLUMNS or depth < fp16x3_winograd.MIN_PRODUCTS:
        names |= {"fp16x3_winograd"}
    if depth > tf32x3_shallow.MAX_DEPTH or (problem.filter_area > 1 and problem.out_w % 4):
        names |= {"tf32x3_shallow"}
    if problem.filter_area > 1 or problem.c > plain_pointwise.MAX_CHANNELS:
        names |= {"plain_pointwise"}
    if problem.m > direct.MAX_FILTERS:
        names |= {"direct"}
    return names


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("provider", MUST_RUN)
def test_every_offer_called_and_captured(provider, problem):
    tensors, truth = case(problem)
    ran = set()
    for name, offer in offers_of(provider, problem).items():
        prepared = prepared_and_called(offer)
        if prepared is None:
            continue
        tensors.output.fill_(torch.nan)
        output = prepared.call()
        assert output.shape == truth.shape and output.dtype == torch.float32
        assert rel_l2_error(output, truth) < tolerance(offer, problem), f"{name} called"

        graph, output = captured(prepared)
        output.fill_(torch.nan)
        graph.replay()
        assert rel_l2_error(output, truth) < tolerance(offer, problem), f"{name} captured"
        ran.add(name)
    if provider == "cublas" and problem.filter_area > 1:
        assert not ran
    else:
        assert ran >= MUST_RUN[provider] - refusing(problem)
        assert len(ran) >= 3 or provider != "cudnn_engine"


def test_cublas_on_images_of_one_pixel():
    problem = ConvProblem(5, 70, 1, 1, 33, 1, 1)
    tensors, truth = case(problem)
    prepared = offers_of("cublas", problem)["bmm"].prepare()
    tensors.output.fill_(torch.nan)
    output = prepared.call()
    assert output.shape == truth.shape
    assert rel_l2_error(output, truth) < GEMM_LIKE


@pytest.mark.parametrize(
    "provider", [name for name, entry in PROVIDERS.items() if name in MUST_RUN and entry.algorithms]
)
def test_offers_are_those_of_the_registry(provider):
    names = set(offers_of(provider, PROBLEMS[0]))
    wanted = set(PROVIDERS[provider].algorithms_in(FP32))
    assert names >= wanted if provider == "cuconv" else names == wanted


def test_the_loaded_cudnn_is_that_of_torch():
    path, version = libcudnn.loaded()
    assert "libcudnn" in path and version == torch.backends.cudnn.version()


def test_classic_algorithms_need_no_cooperation_of_their_neighbours():
    """Called in reverse order, and twice: nothing depends on the order or on a workspace that another call left."""
    problem = PROBLEMS[1]
    tensors, truth = case(problem)
    offers = offers_of("cudnn", problem)
    ready = {name: prepared_and_called(offers[name]) for name in reversed(CLASSIC_ALGORITHMS)}
    running = {name: prepared for name, prepared in ready.items() if prepared}
    assert len(running) >= 3
    for name in [*running, *running]:
        tensors.output.fill_(torch.nan)
        assert rel_l2_error(running[name].call(), truth) < tolerance(offers[name], problem), name


@pytest.mark.parametrize("provider", ["cudnn", "cudnn_engine"])
def test_calls_that_live_at_once_share_a_workspace_which_is_freed_with_them(provider):
    problem = PROBLEMS[1]
    case(problem)
    before = allocated()
    ready = {name: prepared_and_called(offer) for name, offer in offers_of(provider, problem).items()}
    needed = {
        name: prepared.workspace_bytes for name, prepared in ready.items() if prepared and prepared.workspace_bytes
    }
    assert needed, "no algorithm needs workspace, so this tests nothing"
    largest = max(needed, key=needed.__getitem__)
    del ready
    assert allocated() == before
    offers = offers_of(provider, problem)
    first = offers[largest].prepare()
    held = allocated()
    assert held - before >= needed[largest] == first.workspace_bytes
    others = [offers[name].prepare() for name in needed]
    assert allocated() == held and len(others) == len(needed)


@pytest.mark.parametrize("provider", ["cudnn", "cudnn_engine"])
def test_a_workspace_that_the_gpu_has_no_room_for(provider, monkeypatch):
    offers = offers_of(provider, PROBLEMS[1])

    empty = torch.empty

    def refuse(*size, **options):
        if size == (0,):  # what no algorithm can fail to get
            return empty(*size, **options)
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(workspace.torch, "empty", refuse)
    told = {}
    for name, offer in offers.items():
        try:
            offer.prepare()
        except NoMemory as reason:
            told[name] = reason.needed
        except NotRunnable:
            continue
    assert told and min(told.values()) > 0


def plans_of(problem: ConvProblem, precision: str) -> cudnn_engines._Plans:
    engines = load("cudnn_engine")
    plans = cudnn_engines._Plans(engines._cudnn, engines._handle, engines._workspace, problem)
    plans.exclude_other_precision(precision)
    return plans


@pytest.mark.parametrize("problem", PROBLEMS[:4], ids=lambda problem: problem.label)
def test_engines_that_got_ready_for_a_case_offer_the_same_and_others_nothing_of_it(problem):
    engines, tensors = load("cudnn_engine"), case(problem)[0]
    names = [offer.algorithm for offer in engines.offers(problem, tensors)]
    engines.get_ready(problem)
    assert [offer.algorithm for offer in engines.offers(problem, tensors)] == names
    engines.get_ready(PROBLEMS[4])
    offers = engines.offers(problem, tensors)
    assert [offer.algorithm for offer in offers] == names
    prepared = next(filter(None, map(prepared_and_called, offers)))
    assert rel_l2_error(prepared.call(), case(problem)[1]) < WINOGRAD


@pytest.mark.parametrize("problem", PROBLEMS[:4], ids=lambda problem: problem.label)
def test_every_plan_of_cudnn_has_a_precision(problem):
    """The notes that tell the precisions apart leave no plan out."""
    graph = plans_of(problem, "fp32")._graph
    everything = {graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())}
    fp32, tf32 = ({name for name, *_ in plans_of(problem, p).distinct()} for p in ("fp32", "tf32"))
    assert fp32 | tf32 == everything and tf32 - fp32
    of_both = {name.split("_")[0] for name in fp32 & tf32}
    assert of_both <= {"eng58", "eng71"}  # these have no note on TF32, but round to it where it is allowed


def test_a_sweep_with_tf32_allowed_rounds_to_it(tmp_path):
    """The sweep runs in a process of its own, because a process measures one precision."""
    command = [sys.executable, "-m", "harness.run", "--config", "smoke", "--batch", "8", "--runs", "1"]
    subprocess.run([*command, "--precision", "tf32", "--out", str(tmp_path)], check=True)
    rows = read(tmp_path / "measurements.csv")
    assert set(rows.precision) == {"tf32"}
    ran = rows[(rows.k == 1) & (rows.status == "ok")]
    rounded = ran[ran.rel_l2_error > GEMM_LIKE]
    assert set(rounded.provider) >= {"cudnn", "cudnn_engine", "torch", "cublas"}
    assert set(ran[ran.algorithm.str.endswith("_nhwc")].provider) == {"cuconv", "cudnn_engine", "torch"}
    assert rounded.rel_l2_error.max() < 1e-3
    assert rounded.algorithm.str.match("eng58").any()  # cuBLAS under cuDNN


def test_a_sweep_in_half_precision_has_cudnn_in_both_orders(tmp_path):
    command = [sys.executable, "-m", "harness.run", "--config", "smoke", "--batch", "8", "--runs", "1"]
    subprocess.run([*command, "--precision", "fp16", "--hot-only", "--out", str(tmp_path)], check=True)
    rows = read(tmp_path / "measurements.csv")
    assert set(rows.precision) == {"fp16"}
    assert set(rows.provider) == {"cuconv", "cuconv_prepared", "cudnn_engine", "torch"}
    ran = rows[rows.status == "ok"]
    for provider in ("cudnn_engine", "torch"):
        last = ran[ran.provider == provider].algorithm.str.endswith("_nhwc")
        assert last.any() and not last.all()
    assert (rows.status != "incorrect").all() and ran.rel_l2_error.between(1e-4, 3e-3).all()


@pytest.mark.parametrize("epilogue", ["bias_relu", "bias_add_relu"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_sweep_with_an_epilogue_has_fused_calls_of_all_that_have_some(epilogue, precision, tmp_path):
    """The verification of the sweep says "incorrect" where a bias, an addition or ReLU is missing."""
    layers = "[{hw: 14, c: 64, m: 48, k: 3, pad: 1}, {hw: 13, c: 24, m: 16, k: 1, pad: 0}]"
    config = tmp_path / "fused.yaml"
    config.write_text(f"layers: {layers}\nbatch_sizes: [3]\nepilogue: {epilogue}\n")
    command = [sys.executable, "-m", "harness.run", "--config", str(config), "--runs", "1", "--hot-only"]
    subprocess.run([*command, "--precision", precision, "--out", str(tmp_path / "out")], check=True)
    rows = read(tmp_path / "out" / "measurements.csv")
    ran = rows[rows.status == "ok"]
    assert set(ran.provider) == {"cuconv", "cudnn_engine", "torch"}
    assert (rows.status != "incorrect").all()
    assert set(ran[ran.provider == "torch"].algorithm) >= {"default", "benchmark"}


def kernels(call) -> list[str]:
    """Names of what a call launches, sorted: kernels that run side by side are recorded in any order."""
    return sorted(name for name, _ in profiler.kernels(call, 1))


def default_kernels_of_a_fresh_thread(problem: ConvProblem) -> list[str]:
    """The kernels of torch's heuristics in a thread whose plan cache is empty: each thread has its own."""
    tensors, _ = case(problem)

    def convolve():
        with torch.no_grad(), torch_cudnn._settings(torch_cudnn.MODES["default"]):
            F.conv2d(tensors.input, tensors.weight, padding=pads(problem))

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(convolve).result()  # chooses
        return kernels(lambda: thread.submit(convolve).result())


def test_torch_default_does_not_inherit_the_choice_of_benchmark():
    differ = 0
    for problem in PROBLEMS:
        offers = offers_of("torch", problem)
        benchmark = kernels(offers["benchmark"].prepare().call)
        default = kernels(offers["default"].prepare().call)
        assert default == default_kernels_of_a_fresh_thread(problem), problem.label
        differ += benchmark != default
    assert differ, "benchmark chose as the heuristics did everywhere, so this tests nothing: add problems"


def test_torch_benchmark_tries_plans_after_default_has_chosen():
    for problem in PROBLEMS[:3]:
        offers = offers_of("torch", problem)
        default = offers["default"].prepare()
        evicting = {*kernels(partial(load("torch")._evict, case(problem)[0]))}
        default.call()
        tried = {*kernels(offers["benchmark"].prepare)} - evicting
        assert tried - {*kernels(default.call)}, problem.label


def test_torch_default_keeps_its_choice_when_called_in_turn_with_benchmark():
    problem = PROBLEMS[1]
    offers = offers_of("torch", problem)
    ready = {name: offers[name].prepare() for name in ("default", "benchmark")}
    expected = default_kernels_of_a_fresh_thread(problem)
    for _ in range(2):
        ready["benchmark"].call()
        ready["default"].call()
        assert kernels(ready["default"].call) == expected


def test_an_engine_in_fp32_has_notes_and_none_of_rounded_inputs():
    prepared = filter(None, map(prepared_and_called, offers_of("cudnn_engine", PROBLEMS[0]).values()))
    details = [one.detail for one in prepared]
    assert details and all("numerical note" in detail for detail in details)
    assert not any("DOWN_CONVERT_INPUTS" in detail for detail in details)


@pytest.mark.parametrize(
    "problem",
    [*PROBLEMS[:5], ConvProblem(2, 6, 15, 11, 4, 3, 3, 2, 1, stride_h=2, stride_w=2, groups=2)],
    ids=lambda problem: problem.label,
)
def test_the_fastest_engine_computes_tensors_at_any_address(problem):
    own, truth = case(problem)
    plan = load("cudnn_engine").fastest(problem, own, limit=2**30, runs=1)
    x, weight, output = own.input.clone(), own.weight.clone(), torch.full_like(own.output, torch.nan)
    plan(x, weight, output)
    assert rel_l2_error(output, truth) < WINOGRAD
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(x, weight, output)
    output.fill_(torch.nan)
    graph.replay()
    assert rel_l2_error(output, truth) < WINOGRAD


def test_no_engine_fits_into_less_than_nothing():
    with pytest.raises(NotRunnable, match="no engine"):
        load("cudnn_engine").fastest(PROBLEMS[0], case(PROBLEMS[0])[0], limit=-1, runs=1)
