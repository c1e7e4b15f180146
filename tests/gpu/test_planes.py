"""Group normalisation, and squeeze and excitation, in float32 on a GPU: against float64, on all sizes and data."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.algorithms.planes import group_norm, squeeze_excite
from cuconv.algorithms.planes.group_norm import CLUSTERS, GroupNorm
from cuconv.algorithms.planes.squeeze_excite import Excitation
from cuconv.core.activation import NONE, activation_of, named
from cuconv.core.problem import FP32
from cuconv.nn.activated import activated
from cuconv.nn.kernel_call import Planned, called
from cuconv.nn.planes import group_normed
from harness.stopwatch import profiler
from tests.gpu.problems import assert_same_with_non_finite, rel_l2_error

# (images, groups): slices in shared memory and beyond it, of a channel's part and of many channels; planes of any
# number of pixels; groups of one channel and of all; one image and many.
NORMS = [
    ((1, 512, 64, 64), 32),
    ((1, 128, 256, 256), 32),
    ((2, 64, 512, 384), 2),
    ((3, 96, 14, 14), 32),
    ((5, 32, 7, 7), 8),
    ((2, 36, 5, 3), 3),
    ((9, 8, 1, 1), 2),
    ((40, 64, 8, 8), 64),
    ((1, 12, 33, 31), 1),
    ((300, 16, 6, 10), 1),
]
each_norm = pytest.mark.parametrize(("shape", "groups"), NORMS, ids=str)
# (images, hidden): planes that fit into shared memory and that do not; few channels, whose planes several warps share;
# blocks without a channel; hidden values that are no multiple of a warp; one image and many.
EXCITATIONS = [
    ((1, 32, 112, 112), 8),
    ((1, 1152, 7, 7), 48),
    ((8, 96, 56, 56), 4),
    ((3, 256, 112, 112), 16),
    ((2, 20, 5, 3), 5),
    ((1, 4, 1, 1), 1),
    ((70, 480, 14, 14), 20),
    ((2, 2048, 7, 7), 128),
    ((1, 64, 33, 31), 200),
]
each_excitation = pytest.mark.parametrize(("shape", "hidden"), EXCITATIONS, ids=str)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def normal(*shape):
    return torch.randn(shape, device="cuda")


def normed(x, weight, bias, groups, epsilon=1e-5, activation=NONE):
    output = group_normed(x, weight, bias, groups, epsilon, activation.name, list(activation.numbers))
    assert output.is_contiguous() and output.dtype == x.dtype
    return output


def norm_truth(x, weight, bias, groups, epsilon=1e-5, activation=NONE):
    of_channels = (None if one is None else one.double() for one in (weight, bias))
    return activated(F.group_norm(x.double(), groups, *of_channels, epsilon), activation)


@pytest.fixture
def launched(monkeypatch):
    """The launches of the kernels, so that torch's results do not pass for theirs."""
    found, test = [], object()

    def noted(key, planned, *operands):
        def plan(device):
            found.append(planned(device).launch)
            return planned(device)

        return called((key, test, len(found)), plan, *operands)  # no call of another test is there already

    monkeypatch.setattr(cuconv.nn.planes, "called", noted)
    return found


@each_norm
@pytest.mark.parametrize("name", ["none", "silu"])
def test_group_norms(launched, shape, groups, name):
    x, weight, bias = normal(*shape), normal(shape[1]), normal(shape[1])
    output = normed(x, weight, bias, groups, activation=named(name))
    assert rel_l2_error(output, norm_truth(x, weight, bias, groups, activation=named(name))) < 1e-6
    assert torch.equal(output, normed(x, weight, bias, groups, activation=named(name)))
    assert len(launched) == 2


@each_norm
def test_group_norms_in_clusters_of_every_size(monkeypatch, launched, shape, groups):
    x, weight, bias = normal(*shape), normal(shape[1]), normal(shape[1])
    truth = norm_truth(x, weight, bias, groups)
    monkeypatch.setattr(group_norm, "LEAST_SLICE", 0)
    for blocks in CLUSTERS:
        monkeypatch.setattr(group_norm, "CLUSTERS", (blocks,))
        assert rel_l2_error(normed(x, weight, bias, groups), truth) < 1e-6, blocks
    assert [launch.macros["BLOCKS"] for launch in launched] == [*CLUSTERS]


@each_norm
@pytest.mark.parametrize(
    ("mean", "scale"), [(1e4, 1.0), (-300.0, 0.1), (0.0, 1e-15), (0.0, 1e15), (5.0, 0.0), (1e30, 0.0)]
)
def test_means_and_variances_of_every_size(shape, groups, mean, scale):
    """The error is that of the input's own rounding to float32, by the condition of the difference from the mean."""
    x, weight, bias = normal(*shape) * scale + mean, normal(shape[1]), normal(shape[1])
    condition = 1 + abs(mean) / max(scale, 1e-3)
    assert rel_l2_error(normed(x, weight, bias, groups), norm_truth(x, weight, bias, groups)) < 1e-6 * condition


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_of_its_group(value):
    x, weight, bias = normal(2, 32, 12, 12), normal(32), normal(32)
    x[1, 9, 3, 4] = value
    output = normed(x, weight, bias, 4)
    assert output[1, 8:16].isnan().all()
    others = torch.ones(2, 32, dtype=torch.bool)
    others[1, 8:16] = False
    assert rel_l2_error(output[others], norm_truth(x, weight, bias, 4)[others]) < 1e-6


@pytest.mark.parametrize("present", [(False, False), (True, False), (False, True)])
def test_without_a_weight_or_a_bias(launched, present):
    x = normal(2, 32, 12, 12)
    weight, bias = (normal(32) if one else None for one in present)
    assert rel_l2_error(normed(x, weight, bias, 8), norm_truth(x, weight, bias, 8)) < 1e-6 and launched


@pytest.mark.parametrize("activation", ["relu", "gelu", "hardswish", ("leaky_relu", 0.2), ("elu", 0.5)], ids=str)
def test_activations(launched, activation):
    function = activation_of(activation)
    for shape in ((2, 32, 12, 12), (2, 32, 5, 7)):
        x, weight, bias = normal(*shape), normal(32), normal(32)
        output = normed(x, weight, bias, 8, activation=function)
        assert rel_l2_error(output, norm_truth(x, weight, bias, 8, activation=function)) < 2e-6
    assert len(launched) == 2


def excited(x, weights, functions=("silu", "sigmoid")):
    """The output of the kernel."""
    w1, b1, w2, b2 = weights
    functions = [named(one) for one in functions]

    def planned(device):
        excitation = Excitation((*x.shape,), w1.shape[0], *functions)
        return Planned(squeeze_excite.launch(excitation, device), excitation.input_shape, FP32, False)

    packed, biases = torch.cat([w1.t().reshape(-1), w2.reshape(-1)]), torch.cat([b1, b2])
    return called(("excited", x.shape, functions[0], functions[1]), planned, x, packed.data_ptr(), biases.data_ptr())


def excitation_truth(x, weights, functions=("silu", "sigmoid")):
    w1, b1, w2, b2 = (one.double() for one in weights)
    values = activated(x.double().mean((2, 3)) @ w1.T + b1, named(functions[0]))
    return x * activated(values @ w2.T + b2, named(functions[1]))[:, :, None, None]


def weights_of(channels, hidden):
    return normal(hidden, channels) / channels**0.5, normal(hidden), normal(channels, hidden), normal(channels)


@each_excitation
@pytest.mark.parametrize("functions", [("silu", "sigmoid"), ("relu", "hardsigmoid")])
def test_excitations(shape, hidden, functions):
    x, weights = normal(*shape) + 1, weights_of(shape[1], hidden)
    output = excited(x, weights, functions)
    assert rel_l2_error(output, excitation_truth(x, weights, functions)) < 2e-6
    assert all(torch.equal(output, excited(x, weights, functions)) for _ in range(3))


@each_excitation
def test_excitations_with_numbers_that_are_not_finite(shape, hidden):
    """One makes all gates of its image NaN, and no others."""
    x, weights = normal(*shape), weights_of(shape[1], hidden)
    x[-1, 1, 0, 0] = torch.nan
    assert_same_with_non_finite(excited(x, weights), excitation_truth(x, weights))


class Excite(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


def test_a_converted_model_in_a_graph():
    """Kernels that depend on one another, launched early: the graph's outputs are those of the model each time."""
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), Excite(64, 8), nn.Conv2d(64, 64, 3)]
    model, x = nn.Sequential(*layers, nn.GroupNorm(64, 64), Excite(64, 16)).eval().cuda(), normal(2, 3, 30, 34)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured
    names = [name for name, _ in profiler.kernels(lambda: converted(x), 1)]
    assert sum("group_norm" in name for name in names) == sum("squeeze_excite" in name for name in names) == 2
    truth = copy.deepcopy(model).double()(x.double())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = converted(x)
    for _ in range(20):
        output.fill_(torch.nan)
        graph.replay()
        assert rel_l2_error(output, truth) < 1e-5


def test_sizes_that_a_group_does_not_allow_are_torchs(launched):
    x = normal(2, 7, 3, 3)
    assert rel_l2_error(normed(x, None, None, 7), norm_truth(x, None, None, 7)) < 1e-6 and not launched
    with pytest.raises(cuconv.UnsupportedProblem):
        GroupNorm((2, 7, 3, 3), 7, 1e-5, NONE)
