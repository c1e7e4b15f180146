"""Activations on a GPU: every kind by every kernel that computes it, in half precision and float32."""

import pytest
import torch

from cuconv import ConvProblem, algorithms, conv2d, prepare, reference
from cuconv.core.activation import activation_of
from tests.cuconv.test_activation import each_activation, formula, truth_of
from tests.gpu.half import HALVES, assert_rounded_once, each_half, in_precision, tensors
from tests.gpu.problems import TOLERANCE, bias_for, operands, refusal_allowed, rel_l2_error
from tests.gpu.test_residual import residual_for

# Values of a first layer's one channel, or of eight channels of a depthwise layer: a weight of 1 hands them on.
SPECIAL = [0.0, -0.0, 1e4, -1e4, 6e4, -6e4, torch.inf, -torch.inf, torch.nan, 6e-8, -6e-8, 1e-40, -1e-40, 3.0, -3.0]
HALF_KERNELS = ("nhwc_wgmma", "nhwc_split", "nhwc_depthwise", "nhwc_stem", "nhwc_grouped", "nhwc_window")
FP32_ALGORITHMS = [one for one in algorithms() if one not in HALF_KERNELS]
HALF_LAYERS = [
    ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1),
    ConvProblem(1, 512, 7, 7, 136, 3, 3, 1, 1),
    ConvProblem(2, 40, 15, 9, 33, 1, 1),
    ConvProblem(2, 64, 15, 9, 64, 3, 3, 1, 1, groups=8),
    ConvProblem(2, 24, 11, 13, 24, 5, 5, 2, 2, groups=24),
    ConvProblem(2, 3, 23, 24, 40, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(4, 128, 28, 28, 256, 1, 1),
]
LAYERS = [
    ConvProblem(3, 24, 13, 7, 37, 3, 3, 1, 1),
    ConvProblem(4, 128, 28, 28, 256, 1, 1),
    ConvProblem(2, 28, 11, 12, 28, 3, 3, 1, 1, groups=28),
    ConvProblem(33, 960, 1, 1, 242, 1, 1),
    ConvProblem(3, 24, 13, 11, 37, 5, 5, 2, 2),
    ConvProblem(3, 20, 13, 11, 37, 1, 1),
]


def exact(given, values):
    """The activation of values in float64; torch's gelus have few right digits where they are small."""
    truth = truth_of(given, values)
    if given not in ("gelu", "gelu_tanh"):
        return truth
    return torch.where(values.abs() < 100, formula(activation_of(given), values), truth)


def handed_on(values, algorithm, **options):
    """The activations of values, (N,): the outputs of a layer that hands them on."""
    depthwise = algorithm == "nhwc_depthwise"
    channels = 8 if depthwise else 1
    x = values.reshape(1, 1, 1, -1).repeat(1, channels, 1, 1)
    weight = torch.ones(8, 1, 1, 1, device="cuda", dtype=values.dtype)
    if values.dtype != torch.float32:
        x, weight = (one.contiguous(memory_format=torch.channels_last) for one in (x, weight))
    return conv2d(x, weight, groups=channels, algorithm=algorithm, **options)[0, :, 0]


@each_activation
@each_half
@pytest.mark.parametrize("algorithm", HALF_KERNELS[:4])  # the others add products of several channels or positions
def test_single_values_in_half_precision(algorithm, precision, given):
    dtype = HALVES[precision]
    values = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor(SPECIAL)]).to("cuda", dtype)
    truth = exact(given, values.double()).to(dtype)
    for out in handed_on(values, algorithm, activation=given):
        # Factors below 2^-126 are 0.
        least = max(torch.finfo(dtype).smallest_normal * 2**-7, 12 * 2**-126)
        torch.testing.assert_close(out, truth, rtol=torch.finfo(dtype).eps, atol=least, equal_nan=True)


@each_activation
def test_single_values_in_fp32(given):
    values = torch.cat([torch.linspace(-20, 20, 4000), torch.tensor(SPECIAL)]).cuda()
    truth = exact(given, values.double())
    for out in handed_on(values, "two_stage", activation=given):
        finite = truth.isfinite()
        assert torch.equal(out.isnan(), truth.isnan()) and rel_l2_error(out[finite], truth[finite]) < 1e-6
        # The exponent's rounding makes small results less exact; those of float64 have errors of 1e-15, too.
        torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("given", ["tanh", "elu", ("elu", 0.5), "gelu"], ids=str)
@pytest.mark.parametrize("algorithm", ["two_stage", "fp16x3"])  # whose kernels call the formulas and inline them
def test_values_near_0_keep_their_digits(algorithm, given):
    """Without cancellation: e^x - 1 is x where x is small, and the error of gelu is one of its result."""
    values = torch.logspace(-37, 0.6, 998, dtype=torch.float64).float().cuda()
    values = torch.cat([values, -values])
    if algorithm == "two_stage":
        found = handed_on(values, algorithm, activation=given)
    else:  # the products of zeros leave a residual as it is
        x, weight = torch.zeros(1, 1, 3, len(values), device="cuda"), torch.ones(8, 1, 3, 3, device="cuda")
        residual = values.reshape(1, 1, 1, -1).repeat(1, 8, 3, 1)
        options = {"padding": 1, "residual": residual, "activation": given}
        found = conv2d(x, weight, algorithm=algorithm, **options)[0, :, 1]
    truth = exact(given, values.double())
    for out in found:
        torch.testing.assert_close(out.double(), truth, rtol=2e-6, atol=2**-126)


@each_activation
@pytest.mark.parametrize("algorithm", FP32_ALGORITHMS)
@pytest.mark.parametrize(
    ("kernel", "size", "groups"), [(1, (4, 5), 1), (3, (6, 9), 1), (3, (6, 9), 16), (1, (1, 1), 1)]
)
def test_marked_sums_and_special_values_in_fp32(algorithm, kernel, size, groups, given):
    """A sum that a kernel marks by a NaN and replaces has the activation of its value; so has every NaN of its own."""
    values = torch.cat([torch.linspace(-20, 20, 101), torch.tensor([*SPECIAL, 3e38, -3e38])]).cuda()
    x = torch.zeros(len(values), 16, *size, device="cuda")
    x[:, :: 16 // groups, size[0] // 2, size[1] // 2] = values[:, None]
    weight = torch.zeros(16, 16 // groups, kernel, kernel, device="cuda")
    weight[:, 0, kernel // 2, kernel // 2] = 1
    options = {"padding": kernel // 2, "groups": groups}
    truth = exact(given, reference.conv2d(x, weight, **options)).float().double()  # -2 times -3e38 is infinite
    with refusal_allowed(algorithm, groups == 1):
        out = conv2d(x, weight, algorithm=algorithm, activation=given, **options).double()
        assert torch.equal(out.isnan(), truth.isnan()) and torch.equal(out.isinf(), truth.isinf())
        for output, image in zip(out, truth, strict=True):
            finite = image.isfinite()
            error = torch.linalg.vector_norm((output - image)[finite])
            # The exponent's rounding makes small results less exact: gelu_tanh(-5.6) is 1e-8.
            assert error <= 1e-5 * torch.linalg.vector_norm(image[finite]) + 1e-14


@each_activation
@each_half
@pytest.mark.parametrize("problem", HALF_LAYERS, ids=lambda problem: problem.label)
def test_after_bias_and_residual_in_half_precision(problem, precision, given):
    problem = in_precision(problem, precision)
    # Sums of about 1: an activation that keeps the small ones of large sums shows the error of the large ones.
    x, weight = tensors(problem, scale=(problem.group_channels * problem.filter_area) ** -0.25)
    generator = torch.Generator("cuda").manual_seed(9)
    bias = torch.randn(problem.m, generator=generator, device="cuda").to(x.dtype)
    residual = torch.randn(problem.output_shape, generator=generator, device="cuda")
    residual = residual.to(x.dtype, memory_format=torch.channels_last)
    sums = reference.conv2d(x, weight, bias=bias, **problem.geometry) + residual.double()
    options = {**problem.geometry, "activation": given}
    for algorithm in ("auto", *HALF_KERNELS):
        with refusal_allowed(algorithm, problem.is_dense):  # depthwise and dense layers
            out = conv2d(x, weight, bias, residual=residual, algorithm=algorithm, **options)
            assert_rounded_once(out, truth_of(given, sums), algorithm)
            layer = prepare(weight, bias, algorithm=algorithm, **options)
            assert torch.equal(layer(x, residual), out)


@pytest.mark.parametrize("given", ["silu", "hardsigmoid", ("leaky_relu", 0.1), "relu6", "elu", "tanh", "gelu"], ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("problem", LAYERS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("algorithm", ["auto", *FP32_ALGORITHMS])
def test_after_bias_and_residual_in_fp32(algorithm, problem, with_residual, given):
    x, weight = operands(problem)
    bias, residual = bias_for(problem), residual_for(problem) if with_residual else None
    truth = reference.conv2d(x, weight, bias=bias, **problem.geometry)
    truth = truth_of(given, truth if residual is None else truth + residual.double())
    options = {**problem.geometry, "activation": given, "algorithm": algorithm}
    whole = torch.full((problem.n, problem.m + 5, *problem.output_shape[2:]), 7.0, device="cuda")
    with refusal_allowed(algorithm, problem.is_dense):
        out = conv2d(x, weight, bias, residual=residual, **options)
        assert rel_l2_error(out, truth) < 2 * TOLERANCE
        assert torch.equal(prepare(weight, bias, **options)(x, residual), out)
        conv2d(x, weight, bias, residual=residual, out=whole[:, 3:-2], **options)
        assert rel_l2_error(whole[:, 3:-2], truth) < 2 * TOLERANCE
        assert (whole[:, :3] == 7).all() and (whole[:, -2:] == 7).all()


def test_in_a_cuda_graph():
    x, weight = operands(LAYERS[0])
    options = {**LAYERS[0].geometry, "activation": "hardswish"}
    known, graph = conv2d(x, weight, **options), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = conv2d(x, weight, **options)
    captured.fill_(torch.nan)
    graph.replay()
    assert torch.equal(captured, known)
