"""The operator cuconv::conv2d on a CPU: torch's results, gradients and compilation, and what goes to torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cuconv.nn
from cuconv.core.activation import activation_of
from tests.cuconv.nn.models import close, operands
from tests.cuconv.test_activation import each_activation, truth_of

GEOMETRIES = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"padding": "same"},
    {"padding": "valid", "groups": 2},
    {"padding": (1,), "groups": 4},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "silu", ("leaky_relu", 0.2)])
def test_it_computes_what_torch_computes(on_a_gpu, geometry, activation):
    x, weight, bias = operands(geometry.get("groups", 1))
    truth = F.conv2d(x.double(), weight.double(), bias.double(), **geometry)
    residual = torch.randn(truth.shape)
    truth = truth + residual
    ours = cuconv.nn.conv2d(x, weight, bias, **geometry, activation=activation, residual=residual)
    assert close(ours, truth if activation is None else truth_of(activation, truth))
    name = str(activation_of(activation))
    assert on_a_gpu == [{"kind": "plain", "activation": name, "residual": True, "precision": "fp32"}]


@pytest.mark.parametrize("activation", [("none", []), ("relu", []), ("tanh", []), ("elu", [0.5])])
def test_it_passes_torchs_checks_of_an_operator(activation):
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())
    residual = torch.randn(2, 12, 5, 6, requires_grad=True)
    arguments = (x, weight, bias, [2, 2], [1, 1], [1, 1], 1, *activation, residual, "fp32")
    torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments)
    arguments = (x, weight, None, [1, 1], [0, 0], [2, 2], 1, *activation, None, "fp32")
    torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments)


@each_activation
def test_gradients_are_torchs(on_a_gpu, given):
    ours, theirs = ([tensor.requires_grad_() for tensor in operands()] for _ in range(2))
    residuals = [torch.full((2, 12, 5, 6), 0.1, requires_grad=True) for _ in range(2)]
    cuconv.nn.conv2d(*ours, stride=2, padding=1, activation=given, residual=residuals[0]).square().sum().backward()
    truth_of(given, F.conv2d(*theirs, stride=2, padding=1) + residuals[1]).square().sum().backward()
    for mine, his in zip([*ours, residuals[0]], [*theirs, residuals[1]], strict=True):
        assert close(mine.grad, his.grad, 1e-4)


@pytest.mark.parametrize("given", ["relu", "silu", ("leaky_relu", 0.2)], ids=str)
def test_it_compiles_in_one_graph(on_a_gpu, given):
    x, weight, bias = operands()
    compiled = torch.compile(
        lambda x: cuconv.nn.conv2d(x, weight, bias, padding=1, activation=given) * 2, fullgraph=True, backend="eager"
    )
    assert close(compiled(x), 2 * truth_of(given, F.conv2d(x, weight, bias, padding=1)))


@pytest.mark.parametrize(
    "change",
    {
        "half": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
        "double": lambda x, w, b: (x.double(), w.double(), b.double()),
        "channels last": lambda x, w, b: (x.to(memory_format=torch.channels_last), w, b),
        "empty batch": lambda x, w, b: (x[:0], w, b),
        "one image": lambda x, w, b: (x[0], w, b),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_cuconv_does_not_take_goes_to_torch(on_a_gpu, change):
    x, weight, bias = change[1](*operands())
    torch.testing.assert_close(
        cuconv.nn.conv2d(x, weight, bias, padding="same"), F.conv2d(x, weight, bias, padding="same"), check_stride=True
    )
    assert on_a_gpu == []


@pytest.mark.parametrize("convolve", [cuconv.nn.conv2d, cuconv.nn.conv1d, cuconv.nn.conv_transpose2d])
@pytest.mark.parametrize("input", [None, [[1.0]], np.ones((1, 4, 5, 5), np.float32)], ids=type)
def test_what_is_no_tensor_is_refused(convolve, input):
    with pytest.raises(TypeError):
        convolve(input, torch.ones(2, 4, 3, 3))


@pytest.mark.parametrize("filter", [(2, 2), (3, 2), (4, 1)])
@pytest.mark.parametrize("dilation", [1, 2, (1, 2)])
def test_same_padding_that_differs_on_both_sides(on_a_gpu, filter, dilation):
    x, weight, bias = operands()
    weight = weight.repeat(1, 1, 2, 1)[:, :, : filter[0], : filter[1]].contiguous()
    options = {"padding": "same", "dilation": dilation}
    assert close(cuconv.nn.conv2d(x, weight, bias, **options), F.conv2d(x, weight, bias, **options))
    x, weight = (one.bfloat16().to(memory_format=torch.channels_last) for one in (x, weight))
    ours = cuconv.nn.conv2d(x, weight, **options)
    assert close(ours, F.conv2d(x.double(), weight.double(), **options), 1e-2)
    assert ours.is_contiguous(memory_format=torch.channels_last) and len(on_a_gpu) == 2


def test_a_residual_that_is_broadcast_is_added_by_torch(on_a_gpu):
    x, weight, bias = operands()
    residual = torch.randn(1, 12, 1, 1)
    ours = cuconv.nn.conv2d(x, weight, bias, residual=residual, relu=True)
    assert close(ours, (F.conv2d(x, weight, bias) + residual).relu())
    assert on_a_gpu == [{"kind": "plain", "activation": "none", "residual": False, "precision": "fp32"}]


def test_a_number_as_residual(on_a_gpu):
    x, weight, bias = operands()
    assert close(
        cuconv.nn.conv2d(x, weight, bias, residual=0.5), F.conv2d(x.double(), weight.double(), bias.double()) + 0.5
    )


def test_a_residual_of_another_type_promotes(on_a_gpu):
    x, weight, bias = operands()
    ours = cuconv.nn.conv2d(x, weight, bias, residual=torch.ones(2, 12, 7, 9, dtype=torch.float64))
    assert ours.dtype == torch.float64 and close(ours, F.conv2d(x, weight, bias) + 1)


@pytest.mark.parametrize("value", [torch.inf, torch.nan, -torch.inf])
def test_gradients_that_are_not_finite_stop_at_relu(on_a_gpu, value):
    """A gradient of Inf times an output's zero is 0, as in torch, and not NaN."""
    x, weight = torch.full((1, 1, 2, 2), -1.0, requires_grad=True), torch.ones(1, 1, 1, 1)
    cuconv.nn.conv2d(x, weight, relu=True).backward(torch.full((1, 1, 2, 2), value))
    assert not x.grad.any()


def test_a_residual_larger_than_the_output_has_a_gradient(on_a_gpu):
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())
    residual = torch.randn(2, 12, 7, 9).repeat(3, 1, 1, 1, 1).requires_grad_()
    cuconv.nn.conv2d(x, weight, bias, residual=residual).sum().backward()
    assert close(bias.grad, torch.full((12,), 3.0 * 2 * 7 * 9)) and torch.equal(
        residual.grad, torch.ones_like(residual)
    )


@pytest.mark.parametrize("given", ["relu", "silu", "gelu", "tanh", ("elu", 0.5), ("leaky_relu", 0.2)], ids=str)
def test_second_derivatives(given):
    operands_ = [torch.randn(s, dtype=torch.double, requires_grad=True) for s in ((1, 2, 4, 4), (2, 2, 3, 3), (2,))]
    assert torch.autograd.gradgradcheck(lambda *a: cuconv.nn.conv2d(*a, activation=given), operands_)


@pytest.mark.parametrize("padding", ["same", 1])
def test_under_autocast_it_is_torchs(on_a_gpu, padding):
    x, weight, bias = operands()
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (convolve(x, weight, bias, padding=padding) for convolve in (cuconv.nn.conv2d, F.conv2d))
    assert ours.dtype == torch.bfloat16 and torch.equal(ours, theirs) and not on_a_gpu


def test_sizes_may_be_symbols(on_a_gpu):
    x, weight, bias = operands()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: cuconv.nn.conv2d(x, weight, bias, padding=1), fullgraph=True, dynamic=True, backend="eager"
    )
    for images, size in ((2, 9), (3, 8), (5, 12)):
        x = torch.randn(images, 8, size, 11)
        assert close(compiled(x), F.conv2d(x, weight, bias, padding=1))


def test_what_is_no_activation_is_refused():
    for options in ({"activation": "swish"}, {"activation": "silu", "relu": True}):
        with pytest.raises(ValueError, match="activation="):
            cuconv.nn.conv2d(*operands(), **options)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"precision='half': must be one of fp32, tf32"):
        cuconv.nn.conv2d(*operands(), precision="half")
