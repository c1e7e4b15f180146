"""prepare without a GPU: weights are copied, and packed once; what is launched reads them."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, call, call_cache, prepared, select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.call import Packing
from cuconv.core.activation import RELU
from cuconv.core.launch import WORKSPACE, Launch
from cuconv.device import A100, H200
from tests.cuconv.fake_gpu import Recorder

POINTWISE = ALGORITHMS["fp16x3_pointwise"]
LAYERS = [
    ConvProblem(8, 64, 56, 56, 64, 3, 3, 1, 1),
    ConvProblem(32, 512, 14, 14, 512, 3, 3, 1, 1),
    ConvProblem(32, 256, 14, 14, 1024, 1, 1),
    ConvProblem(32, 256, 14, 14, 1024, 1, 1, stride_h=2, stride_w=2),
]
X, WEIGHT_3X3 = torch.zeros(8, 64, 28, 28), torch.zeros(64, 64, 3, 3)


def enqueued(kernel):
    """The addresses of each recorded sequence that begins with a kernel."""
    return [addresses for launches, _, addresses in Recorder.enqueued if launches[0].kernel == kernel]


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
def test_a_plan_for_packed_weights_is_never_predicted_to_be_slower(device):
    for problem in LAYERS:
        plain, packed = (cuconv.plan(problem, device, prepared=prepared) for prepared in (False, True))
        assert select.predicted_us(problem, device, packed) <= select.predicted_us(problem, device, plain)


# The calls


def test_weights_are_packed_at_the_first_call_only(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for _ in range(3):
        out = layer(X)
    assert out.shape == (8, 64, 28, 28)
    ((_, weight, *_, packed),) = enqueued("pack_weights")
    assert weight == layer._weight.data_ptr() != WEIGHT_3X3.data_ptr()
    calls = enqueued("fp16x3")
    assert len(calls) == 3 and {addresses[-2] for addresses in calls} == {packed}
    (flags,) = {addresses[-1] for addresses in calls}
    assert flags and cuda.tensors.synchronized == 3  # after the copies, the flags and the packing


def test_sizes_share_weights_that_are_packed_alike(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for size in (28, 28, 24, 20):
        layer(X[..., :size].contiguous())
    fp16x3, problems = ALGORITHMS["fp16x3"], [ConvProblem(8, 64, 28, w, 64, 3, 3, 1, 1) for w in (28, 24, 20)]
    packings = {fp16x3.packing(one, fp16x3.configure(one, H200, prepared=True)) for one in problems}
    assert len(enqueued("pack_weights")) == len(packings) < 3
    assert len(enqueued("fp16x3")) == 4


def test_operands_reach_the_launch(cuda):
    bias, residual, out = torch.zeros(64), torch.zeros(8, 64, 28, 28), torch.zeros(8, 64, 28, 28)
    layer = cuconv.prepare(WEIGHT_3X3, bias, padding=1, relu=True, algorithm="fp16x3")
    assert layer(X, residual, out=out) is out
    launches, _, addresses = Recorder.enqueued[-1]
    operands = (X, layer._weight, layer._bias, out)
    assert addresses[:4] == tuple(operand.data_ptr() for operand in operands)
    assert addresses[5] == residual.data_ptr()
    assert launches[0].macros["RESIDUAL"] == launches[0].macros["PREPARED"] == 1


def test_the_workspace_has_no_room_for_weights_that_are_packed(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    layer(X)
    plan = cuconv.plan(ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1), H200, "fp16x3", prepared=True)
    packed, _, workspace = cuda.tensors.allocated
    assert packed.nbytes + workspace.nbytes == plan.workspace_bytes


@pytest.mark.parametrize(("problem", "bytes_beside"), [(LAYERS[2], 400), (LAYERS[3], 1000)], ids=["plain", "strided"])
def test_a_part_of_the_workspace_with_a_fixed_place_keeps_it(problem, bytes_beside):
    config = POINTWISE.configure(problem, H200, prepared=True)
    calls = POINTWISE.launches(problem, config, CallOptions(activation=RELU, packed=True))
    assert call_cache.workspace_beside(calls, 1000, 600) == bytes_beside
    assert any(WORKSPACE in launch.arguments for launch in calls)


def test_an_algorithm_that_packs_nothing_is_called_plainly(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="two_stage")
    layer(X)
    assert not enqueued("pack_weights") and len(Recorder.enqueued) == 1
    assert not layer.packed_bytes


def test_one_image_without_n(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    residual, out = torch.zeros(64, 28, 28), torch.zeros(64, 28, 28)
    assert layer(X[0]).shape == (64, 28, 28)
    assert layer(X[0], residual, out=out) is out
    assert len(enqueued("pack_weights")) == 1


def test_one_image_in_channels_last(cuda):
    layer, images = cuconv.prepare(WEIGHT_3X3, padding=1, precision="tf32"), X.to(memory_format=torch.channels_last)
    assert layer(images[0]).shape == (64, 28, 28)
    assert Recorder.enqueued[-1][2][1] == layer._of_last()._weight.data_ptr()


# The weights are the layer's own


def test_later_changes_of_weight_and_bias_change_nothing(cuda):
    weight, bias = torch.rand(64, 64, 3, 3), torch.rand(64)
    expected = weight.clone(), bias.clone()
    layer = cuconv.prepare(weight, bias, padding=1, algorithm="fp16x3")
    weight.add_(1)
    bias.data = torch.zeros(64)
    layer(X)
    assert torch.equal(layer._weight, expected[0]) and torch.equal(layer._bias, expected[1])
    assert Recorder.enqueued[-1][2][1:3] == (layer._weight.data_ptr(), layer._bias.data_ptr())


def test_a_weight_in_another_layout_is_copied_contiguously(cuda):
    weight = torch.rand(64, 64, 3, 3).to(memory_format=torch.channels_last)
    layer = cuconv.prepare(weight, padding=1)
    assert layer._weight.is_contiguous() and torch.equal(layer._weight, weight)
    layer(X)


def test_what_the_caller_owns_is_not_copied(cuda):
    layer = prepared.owned(WEIGHT_3X3, None, (1, 1), (1, 1), (1, 1), 1, activation=RELU, precision="fp32")
    layer(X)
    assert Recorder.enqueued[-1][2][1] == WEIGHT_3X3.data_ptr()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_has_weights_of_its_own_and_packs_them_itself(cuda, again):
    layer = cuconv.prepare(torch.rand(64, 64, 3, 3), torch.rand(64), padding=1, relu=True, algorithm="fp16x3")
    layer(X)
    other = again(layer)
    assert not other.packed_bytes and torch.equal(other._weight, layer._weight)
    other(X)
    assert other.packed_bytes == layer.packed_bytes
    first, second = Recorder.enqueued[1], Recorder.enqueued[3]
    assert first[0] == second[0] and first[2][1] != second[2][1] and first[2][-2] != second[2][-2]
    assert copy.copy(layer) is layer


def test_layers_of_the_same_options_share_ready_calls_and_no_weights(cuda):
    layers = [cuconv.prepare(torch.rand(64, 64, 3, 3), padding=1, algorithm="fp16x3") for _ in range(2)]
    for layer in layers * 2:
        layer(X)
    assert len(Recorder.made) == 2 and len(enqueued("pack_weights")) == 2  # the main kernel's, and the packing's
    calls = enqueued("fp16x3")
    assert len(calls) == 4 and len({addresses[-2] for addresses in calls}) == 2
    assert len({addresses[-1] for addresses in calls}) == 1


def packing(key, size=1024):
    """How some call wants weights packed."""
    return Packing(key, size, Recorder([Launch(Path("a.cu"), {}, "pack_weights", 1, 32, ())], "sm_90a", 3))


def test_at_most_two_packed_layouts_are_kept(cuda):
    layer = cuconv.prepare(WEIGHT_3X3)
    for key in "abacab":
        layer.packed(packing(key), 0)
    assert len(enqueued("pack_weights")) == 4  # a, b, c for b, and b for c
    assert layer.packed_bytes == 2048


def test_a_packed_layout_that_a_graph_reads_stays(cuda):
    layer = cuconv.prepare(WEIGHT_3X3)
    layer.packed(packing("a"), 0)
    captured = layer.packed(packing("a"), 9)
    for key in "bcd":
        layer.packed(packing(key), 0)
    assert layer.packed(packing("a"), 0) is captured and layer.packed_bytes == 3 * 1024
    assert layer.packed(packing("e"), 9) is None and len(enqueued("pack_weights")) == 4


# CUDA graphs, streams and threads


def test_what_is_not_packed_before_a_capture_is_computed_plainly(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    cuda.capture = 1
    layer(X)
    (launches, _, _) = Recorder.enqueued.pop()
    assert [launch.kernel for launch in launches] == ["pack_weights", "fp16x3"]  # of conv2d
    cuda.capture = 0
    layer(X)
    outside = Recorder.enqueued[-1][2][-1]
    found = []
    for cuda.capture in [*range(1, 200), 199]:
        layer(X)
        launches, _, addresses = Recorder.enqueued[-1]
        assert [launch.kernel for launch in launches] == ["fp16x3"]
        found.append(addresses[-1])
    assert outside not in found and 0 not in found and found[-1] == found[-2]  # flags of each capture's own


def test_prepare_in_a_capture(cuda):
    cuda.capture = 1
    with pytest.raises(UnsupportedProblem, match="before a capture"):
        cuconv.prepare(WEIGHT_3X3)


def test_the_allocator_is_told_once_of_each_stream_that_reads_weights(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, torch.zeros(64), padding=1, algorithm="fp16x3")
    for cuda.tensors.stream in (77, 78, 77, 78):
        layer(X)
    packed = enqueued("fp16x3")[0][-2]
    own = (layer._weight.data_ptr(), layer._bias.data_ptr())
    assert cuda.tensors.readers == [(what, (stream, 3)) for stream in (77, 78) for what in ((packed,), own)]


def test_threads_share_packed_weights_and_nothing_that_a_call_writes_to(cuda):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(layer, X).result()
    assert len(enqueued("pack_weights")) == 1
    assert [launches[0].kernel for launches, _, _ in Recorder.made].count("fp16x3") == 2


def test_a_call_in_the_middle_of_packing(cuda, monkeypatch):
    """It packs the weights itself, and both calls then use what was packed first."""
    layer, nested = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3"), []
    synchronize = cuda.tensors.synchronize

    def interrupted(device):
        synchronize(device)
        if enqueued("pack_weights") and not nested:
            nested.append(True)
            layer(X)

    monkeypatch.setattr(cuda.tensors, "synchronize", interrupted)
    layer(X), layer(X)
    assert len({addresses[-2] for addresses in enqueued("fp16x3")}) == 1 and len(enqueued("fp16x3")) == 3


def test_every_driver_call_has_a_context(cuda, monkeypatch):
    """A thread without a context cannot ask whether its stream is captured, nor launch."""
    asked = []
    for module in (call, prepared):
        monkeypatch.setattr(module, "capture_of", lambda stream: asked.append(cuda.devices[-1]) or 0)
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, algorithm="fp16x3")
    layer(X), layer(X)
    assert asked == [3, 3, 3] and cuda.devices[-1] == 0


# Errors


FREED = torch.ones(4, 4, 1, 1)
FREED.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((WEIGHT_3X3.to_sparse(),), UnsupportedProblem, "sparse"),
        ((torch._neg_view(WEIGHT_3X3),), UnsupportedProblem, "negates"),
        ((WEIGHT_3X3[0],), UnsupportedProblem, "dimensions"),
        ((FREED,), UnsupportedProblem, "memory"),
        ((WEIGHT_3X3, torch.zeros(4)), UnsupportedProblem, "bias"),
        ((WEIGHT_3X3, 0.5), TypeError, "bias"),
        ((WEIGHT_3X3, torch.zeros(64, requires_grad=True)), UnsupportedProblem, "bias is on GPU 4"),
        ((WEIGHT_3X3, None, 1.5), UnsupportedProblem, "stride"),
        ((WEIGHT_3X3, None, 1, "full"), UnsupportedProblem, "padding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_never_be_computed_is_refused_when_it_is_prepared(cuda, arguments, error, named):
    with pytest.raises(error, match=named) as caught:
        cuconv.prepare(*arguments)
    assert "\n" not in str(caught.value) and not Recorder.enqueued


@pytest.mark.parametrize(
    "weight", [None, [[1.0]], WEIGHT_3X3.to("meta"), WEIGHT_3X3], ids=["none", "list", "meta", "cpu"]
)
def test_weights_on_no_gpu(weight):
    with pytest.raises(UnsupportedProblem if isinstance(weight, torch.Tensor) else TypeError):
        cuconv.prepare(weight)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_what_conv2d_refuses_is_refused(cuda, precision):
    layer = cuconv.prepare(WEIGHT_3X3, padding=1, precision=precision)
    for error, operands in (
        (UnsupportedProblem, (X[:, :32],)),
        (TypeError, (X.numpy(),)),
        (TypeError, (None,)),
        (UnsupportedProblem, (X, X[:1])),
    ):
        with pytest.raises(error):
            layer(*operands)
    with pytest.raises(ValueError, match="magic"):
        cuconv.prepare(WEIGHT_3X3, algorithm="magic")(X)
