"""Group normalisation, and squeeze and excitation, in half precision on a GPU: against float64, rounded once."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.algorithms.planes import nhwc_group_norm, nhwc_squeeze_excite
from cuconv.algorithms.planes.squeeze_excite import Excitation
from cuconv.core.activation import NONE, activation_of, named
from cuconv.nn.formats import HALVES
from cuconv.nn.kernel_call import Planned, called
from cuconv.nn.planes import group_normed
from harness.stopwatch import profiler
from tests.gpu.half import WORSE, assert_rounded_once
from tests.gpu.problems import rel_l2_error
from tests.gpu.test_planes import Excite, excitation_truth, launched, norm_truth, seeded, weights_of

__all__ = ["launched", "seeded"]  # fixtures

# (images, groups): groups of 1, 4, 10, 20, 64, 80 and all channels; slices in shared memory and beyond it; a last set
# of fewer groups; planes of any number of pixels, and of one; one image and many.
NORMS = [
    ((1, 320, 64, 64), 32),
    ((2, 128, 256, 256), 32),
    ((2, 640, 31, 33), 32),
    ((1, 2560, 8, 8), 32),
    ((3, 40, 5, 7), 4),
    ((70, 64, 9, 9), 64),
    ((2, 64, 14, 14), 1),
    ((1, 4096, 4, 4), 1),
    ((5, 72, 1, 1), 9),
    ((300, 16, 6, 10), 4),
    ((1, 24, 1, 1000), 3),
]
each_norm = pytest.mark.parametrize(("shape", "groups"), NORMS, ids=str)
# (images, hidden): parts that fit into shared memory and that do not; blocks that share channels, pixels or both, and
# blocks without any; hidden values that are no multiple of a warp; one image and many.
EXCITATIONS = [
    ((1, 32, 112, 112), 8),
    ((1, 1152, 7, 7), 48),
    ((8, 96, 56, 56), 4),
    ((3, 256, 224, 224), 16),
    ((2, 24, 5, 3), 5),
    ((1, 8, 1, 1), 1),
    ((70, 480, 14, 14), 20),
    ((2, 2048, 7, 7), 128),
    ((1, 64, 33, 31), 200),
    ((3, 520, 3, 4), 33),
]
each_excitation = pytest.mark.parametrize(("shape", "hidden"), EXCITATIONS, ids=str)
each_type = pytest.mark.parametrize("dtype", HALVES, ids=str)


def normal(dtype, *shape, scale=1.0, mean=0.0):
    values = (torch.randn(shape, device="cuda") * scale + mean).to(dtype)
    return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values


def normed(x, weight, bias, groups, activation=NONE):
    output = group_normed(x, weight, bias, groups, 1e-5, activation.name, list(activation.numbers))
    assert output.is_contiguous(memory_format=torch.channels_last) and output.dtype == x.dtype
    return output


def of_norm(dtype, shape, **data):
    return normal(dtype, *shape, **data), normal(dtype, shape[1]), normal(dtype, shape[1])


@each_type
@each_norm
@pytest.mark.parametrize("name", ["none", "silu"])
def test_group_norms(launched, shape, groups, name, dtype):
    operands = of_norm(dtype, shape)
    output = normed(*operands, groups, activation=named(name))
    assert_rounded_once(output, norm_truth(*operands, groups, activation=named(name)))
    assert all(torch.equal(output, normed(*operands, groups, activation=named(name))) for _ in range(3))
    assert [launch.kernel for launch in launched] == ["nhwc_group_norm"] * 4


@each_norm
def test_group_norms_in_clusters_of_every_size(monkeypatch, launched, shape, groups):
    operands = of_norm(torch.float16, shape)
    truth, sizes = norm_truth(*operands, groups), nhwc_group_norm.CLUSTERS
    monkeypatch.setattr(nhwc_group_norm, "LEAST_SLICE", 1)
    for blocks in sizes:
        monkeypatch.setattr(nhwc_group_norm, "CLUSTERS", (blocks,))
        assert_rounded_once(normed(*operands, groups), truth, blocks)
    assert [launch.macros["BLOCKS"] for launch in launched] == [*sizes]


@each_type
@each_norm
@pytest.mark.parametrize(("mean", "scale"), [(100.0, 1.0), (-1000.0, 2.0), (0.0, 1e-4), (0.0, 1e4), (5.0, 0.0)])
def test_means_and_variances_of_every_size(shape, groups, mean, scale, dtype):
    """The error is that of rounding the output, and of a mean in float32."""
    operands = of_norm(dtype, shape, scale=scale, mean=mean)
    truth = norm_truth(*operands, groups)
    once = rel_l2_error(truth.to(dtype), truth)
    condition = 1 + abs(mean) / max(scale, 3e-3)  # the least deviation is that of epsilon
    assert rel_l2_error(normed(*operands, groups), truth) <= WORSE * once + 3e-7 * condition


def test_variances_near_the_limits_of_float32():
    for scale in (1e-15, 1e15):
        operands = of_norm(torch.bfloat16, (2, 64, 17, 19), scale=scale)
        assert_rounded_once(normed(*operands, 8), norm_truth(*operands, 8), scale)


@each_type
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 4)])
def test_a_number_that_is_not_finite_is_of_its_group(value, place, dtype):
    x, weight, bias = of_norm(dtype, (2, 40, 12, 12))
    x[1, 19, *place] = value
    output = normed(x, weight, bias, 4)
    assert output[1, 10:20].isnan().all()
    others = torch.ones(2, 40, dtype=torch.bool)
    others[1, 10:20] = False
    assert_rounded_once(output[others], norm_truth(x, weight, bias, 4)[others])


@pytest.mark.parametrize("present", [(False, False), (True, False), (False, True)])
def test_without_a_weight_or_a_bias(launched, present):
    x, *numbers = of_norm(torch.float16, (2, 32, 12, 12))
    numbers = [one if is_there else None for one, is_there in zip(numbers, present, strict=True)]
    assert_rounded_once(normed(x, *numbers, 8), norm_truth(x, *numbers, 8))
    assert launched


@each_type
@pytest.mark.parametrize("activation", ["relu", "gelu", "hardswish", ("leaky_relu", 0.2), ("elu", 0.5)], ids=str)
def test_activations(launched, activation, dtype):
    operands = of_norm(dtype, (2, 40, 5, 7))
    function = activation_of(activation)
    assert_rounded_once(normed(*operands, 4, function), norm_truth(*operands, 4, activation=function))
    assert launched


def test_what_the_kernel_does_not_take_is_torchs(launched):
    for shape, groups in (((2, 12, 3, 3), 3), ((1, 4104, 2, 2), 1)):
        operands = of_norm(torch.float16, shape)
        torch.testing.assert_close(normed(*operands, groups), F.group_norm(operands[0], groups, *operands[1:]))
    assert not launched


def excited(x, weights, functions=("silu", "sigmoid")):
    """The output of the kernel."""
    w1, b1, w2, b2 = weights
    functions = [named(one) for one in functions]

    def planned(device):
        excitation = Excitation((*x.shape,), w1.shape[0], *functions, HALVES[x.dtype])
        launch = nhwc_squeeze_excite.launch(excitation, device)
        return Planned(launch, excitation.input_shape, excitation.precision, True)

    packed, biases = torch.cat([w1.t().reshape(-1), w2.reshape(-1)]), torch.cat([b1, b2])
    return called(("excited", w1.shape, *functions), planned, x, packed.data_ptr(), biases.data_ptr())


@each_type
@each_excitation
@pytest.mark.parametrize("functions", [("silu", "sigmoid"), ("relu", "hardsigmoid")])
def test_excitations(shape, hidden, functions, dtype):
    x, weights = normal(dtype, *shape, mean=1.0), weights_of(shape[1], hidden)
    output = excited(x, weights, functions)
    assert_rounded_once(output, excitation_truth(x, weights, functions))
    assert all(torch.equal(output, excited(x, weights, functions)) for _ in range(3))


@each_type
@each_excitation
def test_excitations_with_numbers_that_are_not_finite(shape, hidden, dtype):
    """One makes all gates of its image NaN, and no others."""
    x, weights = normal(dtype, 1 + shape[0], *shape[1:]), weights_of(shape[1], hidden)
    x[-1, 1, -1, -1] = torch.nan
    output = excited(x, weights)
    assert output[-1].isnan().all()
    assert_rounded_once(output, excitation_truth(x, weights))


class Pooled(Excite):
    """Its means are those of torch's adaptive pooling, which gives them the strides of channels last."""

    def forward(self, x):
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(F.adaptive_avg_pool2d(x, 1)))))


@each_type
def test_a_converted_model_in_a_graph(dtype):
    """Kernels that depend on one another, launched early: the graph's outputs are those of the model each time."""
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), Excite(64, 8), nn.Conv2d(64, 64, 3)]
    model = nn.Sequential(*layers, nn.GroupNorm(64, 64), Pooled(64, 16)).eval().cuda()
    model, x = model.to(dtype).to(memory_format=torch.channels_last), normal(dtype, 2, 3, 30, 34)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured
    names = [name for name, _ in profiler.kernels(lambda: converted(x), 1)]
    for kernel in ("nhwc_group_norm", "nhwc_squeeze_excite"):
        assert sum(kernel in name for name in names) == 2, names
    wanted = converted(x)
    assert rel_l2_error(wanted, copy.deepcopy(model).double()(x.double())) < 20 * torch.finfo(dtype).eps
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = converted(x)
    for _ in range(20):
        output.fill_(torch.nan)
        graph.replay()
        assert torch.equal(output, wanted)
