"""prepare without a GPU: weights are packed once, and again where they changed; what is launched reads them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, prepared, select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import weight_packing
from cuconv.device import A100, H200
from cuconv.flags import flags_of
from cuconv.jit import FLAGS, PACKED, RESIDUAL, WEIGHT, WORKSPACE
from tests.cuconv.fake_gpu import Recorder

PACKING = ("fp16x3", "fp16x3_winograd", "fp16x3_pointwise")
LAYERS = [
    ConvProblem(8, 64, 56, 56, 64, 3, 3, 1, 1),
    ConvProblem(32, 512, 14, 14, 512, 3, 3, 1, 1),
    ConvProblem(32, 256, 14, 14, 1024, 1, 1),
    ConvProblem(32, 256, 14, 14, 1024, 1, 1, stride_h=2, stride_w=2),
]
CASES = [  # an algorithm that packs weights, and a layer that it is for
    *(("fp16x3", layer) for layer in LAYERS[:2]),
    *(("fp16x3_winograd", layer) for layer in LAYERS[:2]),
    *(("fp16x3_pointwise", layer) for layer in LAYERS[2:]),
]
X, WEIGHT_3X3 = torch.zeros(8, 64, 28, 28), torch.zeros(64, 64, 3, 3)


def launches_of(problem, name, residual=False, prepared=True):
    config = ALGORITHMS[name].configure(problem, H200, prepared)
    return select.launches_of(select.LaunchPlan(name, config), problem, True, True, residual, H200)


@pytest.fixture
def captured(cuda, monkeypatch):
    """Whether the current stream is captured: set it by `captured[0] = 1`."""
    state = [0]
    monkeypatch.setattr(prepared, "capture_of", lambda stream: state[0])
    monkeypatch.setattr("cuconv.flags.capture_of", lambda stream: state[0])
    flags_of.cache_clear()
    return state


def enqueued(kernel):
    """The addresses of each recorded sequence that begins with a kernel."""
    return [addresses for launches, _, addresses in Recorder.enqueued if launches[0].kernel == kernel]


# The launches


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("name", "problem"), CASES, ids=str)
def test_the_main_kernel_reads_what_another_launch_has_packed(name, problem, residual):
    launches = launches_of(problem, name, residual)
    once, calls = weight_packing.prepare(launches)
    assert once is not None
    assert once.kernel == "pack_weights" and len(calls) == len(launches) - 1
    assert once.arguments[:2] == (WEIGHT, PACKED) and once.arguments[-1] == 0  # it clears no flags
    (main,) = [launch for launch in calls if launch.kernel == name]
    assert main.arguments[-2:] == (PACKED, FLAGS)
    assert main.macros["PREPARED"] == 1 and main.macros == once.macros  # one module
    assert (RESIDUAL in main.arguments) == bool(main.macros.get("RESIDUAL"))
    (plain,) = [launch for launch in launches if launch.kernel == name]
    assert (main.blocks, main.threads, main.shared_bytes) == (plain.blocks, plain.threads, plain.shared_bytes)
    assert all(PACKED not in launch.arguments for launch in calls if launch is not main)


@pytest.mark.parametrize("name", ["two_stage", "tf32x3_gemm", "tf32x3_wgmma"])
def test_other_algorithms_launch_what_they_always_do(name):
    launches = launches_of(LAYERS[0], name)
    assert weight_packing.prepare(launches) == (None, launches)


@pytest.mark.parametrize("name", PACKING)
def test_packing_counts_in_no_prediction_for_packed_weights(name):
    algorithm, problem = ALGORITHMS[name], LAYERS[2 if name == "fp16x3_pointwise" else 1]
    costs = algorithm.costs()
    for config in algorithm.candidates(problem, H200):
        packing = algorithm.packing(problem, config)
        saved = packing.predicted_us(problem, costs) if packing else 0
        both = algorithm.predicted_us(problem, H200, config), algorithm.prepared_us(problem, H200, config)
        assert both[0] - both[1] == pytest.approx(saved) and both[1] > 0
    chosen = algorithm.configure(problem, H200, prepared=True)
    best = min(algorithm.prepared_us(problem, H200, config) for config in algorithm.candidates(problem, H200))
    assert algorithm.prepared_us(problem, H200, chosen) == best


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
def test_a_plan_for_packed_weights_is_never_predicted_to_be_slower(device):
    for problem in LAYERS:
        plain, packed = (cuconv.plan(problem, device, prepared=prepared) for prepared in (False, True))
        assert select.predicted_us(problem, device, packed) <= select.predicted_us(problem, device, plain)


# The calls


def test_weights_are_packed_at_the_first_call_only(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for _ in range(3):
        out = layer(X)
    assert out.shape == (8, 64, 28, 28)
    ((_, weight, *_, packed),) = enqueued("pack_weights")
    assert weight == WEIGHT_3X3.data_ptr()
    calls = enqueued("fp16x3")
    assert len(calls) == 3 and {addresses[-2] for addresses in calls} == {packed}
    (flags,) = {addresses[-1] for addresses in calls}
    assert flags and cuda.tensors.synchronized == 1


def test_sizes_share_weights_that_are_packed_alike(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for size in (28, 28, 24, 20):
        layer(X[..., :size].contiguous())
    plans = {layer_packing(size) for size in (28, 24, 20)}
    assert len(enqueued("pack_weights")) == len(plans) < 3
    assert len(enqueued("fp16x3")) == 4


def layer_packing(size):
    problem = ConvProblem(8, 64, 28, size, 64, 3, 3, 1, 1)
    algorithm = ALGORITHMS["fp16x3"]
    return algorithm.packing(problem, algorithm.configure(problem, H200, prepared=True))


def test_operands_reach_the_launch(cuda, captured):
    bias, residual, out = torch.zeros(64), torch.zeros(8, 64, 28, 28), torch.zeros(8, 64, 28, 28)
    layer = cuconv.prepare(WEIGHT_3X3, bias, padding=1, relu=True, algorithm="fp16x3")
    assert layer(X, residual, out=out) is out
    launches, _, addresses = Recorder.enqueued[-1]
    operands = (X, WEIGHT_3X3, bias, out)
    assert addresses[:4] == tuple(operand.data_ptr() for operand in operands)
    assert addresses[5] == residual.data_ptr()
    assert launches[0].macros["RESIDUAL"] == launches[0].macros["PREPARED"] == 1


def test_the_workspace_has_no_room_for_weights_that_are_packed(cuda, captured, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        cuda.tensors, "allocator", lambda shape, device: lambda: sizes.append(shape) or torch.empty(shape)
    )
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    layer(X)
    plan = cuconv.plan(ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1), H200, "fp16x3", prepared=True)
    (packed,), (*_, workspace) = sizes[0], sizes[2]
    assert 4 * (packed + workspace) == plan.workspace_bytes


@pytest.mark.parametrize("strided", [False, True])
def test_a_part_with_a_fixed_place_keeps_it(strided):
    problem = LAYERS[3] if strided else LAYERS[2]
    _, calls = weight_packing.prepare(launches_of(problem, "fp16x3_pointwise"))
    offsets = [a.offset for launch in calls for a in launch.arguments if not isinstance(a, int)]
    assert any(offsets) == strided
    assert prepared._workspace_bytes(calls, 1000, 600) == (1000 if strided else 400)
    assert any(WORKSPACE in launch.arguments for launch in calls)


def test_an_algorithm_that_packs_nothing_is_called_plainly(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="two_stage")
    layer(X)
    assert not enqueued("pack_weights") and len(Recorder.enqueued) == 1
    assert not cuda.tensors.synchronized


def test_one_image_without_n(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    residual, out = torch.zeros(64, 28, 28), torch.zeros(64, 28, 28)
    assert layer(X[0]).shape == (64, 28, 28)
    assert layer(X[0], residual, out=out) is out
    assert len(enqueued("pack_weights")) == 1


# Changes of the weight


def test_weights_that_are_written_to_are_packed_again_to_the_same_place(cuda, captured):
    weight = WEIGHT_3X3.clone()
    layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
    layer(X)
    weight.add_(1)
    layer(X), layer(X)
    first, second = enqueued("pack_weights")
    assert first == second and len(Recorder.made) == 2  # nothing is prepared again


def test_update_packs_what_no_one_noticed(cuda, captured):
    weight = WEIGHT_3X3.clone()
    layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
    layer(X)
    weight.data.add_(1)
    layer(X)
    assert len(enqueued("pack_weights")) == 1
    layer.update()
    assert len(enqueued("pack_weights")) == 2


def test_weights_that_moved_are_checked_and_packed_anew(cuda, captured):
    weight = WEIGHT_3X3.clone()
    layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
    layer(X)
    weight.data = WEIGHT_3X3 + 1
    layer(X)
    assert [addresses[1] for addresses in enqueued("pack_weights")][-1] == weight.data_ptr()
    weight.data = torch.zeros(64, 32, 3, 3)
    with pytest.raises(UnsupportedProblem, match="weight has 32 channels, input 64"):
        layer(X)


# CUDA graphs and threads


def test_what_is_not_packed_before_a_capture_is_computed_plainly(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    captured[0] = 1
    layer(X)
    (launches, _, _) = Recorder.enqueued.pop()
    assert [launch.kernel for launch in launches] == ["pack_weights", "fp16x3"]  # of conv2d
    captured[0] = 0
    layer(X)
    outside = Recorder.enqueued[-1][2][-1]
    captured[0] = 1
    layer(X)
    launches, _, addresses = Recorder.enqueued[-1]
    assert [launch.kernel for launch in launches] == ["fp16x3"]
    assert addresses[-1] not in (0, outside)  # flags of the capture's own


def test_weights_that_changed_are_not_packed_in_a_capture(cuda, captured):
    weight = WEIGHT_3X3.clone()
    layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
    layer(X)
    weight.add_(1)
    captured[0] = 1
    layer(X)
    assert [launch.kernel for launch in Recorder.enqueued[-1][0]] == ["pack_weights", "fp16x3"]


def test_threads_share_packed_weights_and_nothing_that_a_call_writes_to(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(layer, X).result()
    assert len(enqueued("pack_weights")) == 1
    assert [launches[0].kernel for launches, _, _ in Recorder.made].count("fp16x3") == 2


# Errors


@pytest.mark.parametrize("wrong", [None, [[1.0]], "weights"])
def test_other_kinds_of_weight(wrong):
    with pytest.raises(TypeError, match="torch CUDA tensors or CuPy arrays"):
        cuconv.prepare(wrong)


def test_what_conv2d_refuses_is_refused(cuda, captured):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    with pytest.raises(UnsupportedProblem, match="weight has 64 channels, input 32"):
        layer(X[:, :32])
    with pytest.raises(TypeError, match=r"input is a numpy\.ndarray|one library"):
        layer(X.numpy())
    with pytest.raises(UnsupportedProblem, match=r"residual has shape"):
        layer(X, X[:1])
    with pytest.raises(ValueError, match="must be one of auto"):
        cuconv.prepare(WEIGHT_3X3, algorithm="magic")(X)
