"""Tests of precision="tf32" on a GPU: every algorithm computes the product of rounded operands, no more and no less."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.device import device_spec
from harness.contenders.compiling import compile_for
from tests.gpu.configurations import configurations, run
from tests.gpu.problems import (
    LAYERS,
    ODD,
    TOLERANCE,
    UNEVEN,
    assert_same_with_non_finite,
    bias_for,
    operands,
    pads,
    poisoned_output,
    refusal_allowed,
    rel_l2_error,
)

# The relative L2 error of the sums of rounded operands. The tensor cores truncate when they accumulate, over the whole
# reduction; the FP16 algorithms round ties to even, which makes 1e-5.
SUM_TOLERANCE = 1e-4
ROUNDING = 2e-4, 4e-4  # the relative L2 error of rounding both operands, over many products
TF32_TOLERANCE = 1e-3  # the same where few outputs are compared

SMALL = ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1)
POINTWISE = ConvProblem(3, 24, 14, 13, 40, 1, 1)
EVERY_CONFIGURATION = [
    ConvProblem(1, 130, 7, 9, 40, 3, 3, 1, 1, "tf32"),
    ConvProblem(2, 1050, 7, 9, 140, 1, 1, 1, 0, "tf32"),
    ConvProblem(2, 1050, 6, 7, 140, 1, 1, 0, 0, "tf32"),  # pixels in pairs
]
each_algorithm = pytest.mark.parametrize("algorithm", ["auto", *offering("tf32")])
each_small = pytest.mark.parametrize("problem", [SMALL, POINTWISE], ids=str)


def rounded_truth(problem, x, weight):
    """The convolution of the operands rounded to TF32, in float64."""
    rounded = [reference.round_to_tf32(operand) for operand in (x, weight)]
    return reference.conv2d(*rounded, pads(problem))


def computed(problem, x, weight, algorithm="auto", **options):
    """The output of conv2d in TF32, written over NaN."""
    out = poisoned_output(problem)
    return conv2d(x, weight, padding=pads(problem), algorithm=algorithm, precision="tf32", out=out, **options)


def assert_product(out, problem, x, weight, algorithm):
    """Check an output against the product of rounded operands; auto may also have computed in FP32."""
    errors = [rel_l2_error(out, rounded_truth(problem, x, weight))]
    if algorithm == "auto":
        errors.append(rel_l2_error(out, reference.conv2d(x, weight, pads(problem))))
    assert min(errors) < SUM_TOLERANCE


@pytest.fixture(scope="module")
def compiled():
    """Compile the kernels of all layers in parallel; one by one, at their first launch, they would take minutes."""
    spec = device_spec(torch.cuda.current_device())
    compile_for([replace(problem, precision="tf32") for problem in LAYERS], spec, ["auto", *offering("tf32")])


@each_algorithm
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("problem", LAYERS, ids=lambda problem: problem.label)
def test_layers_have_the_error_of_rounding(algorithm, problem):
    x, weight = operands(problem)
    low, high = ROUNDING
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm)
        assert_product(out, problem, x, weight, algorithm)
        error = rel_l2_error(out, reference.conv2d(x, weight, pads(problem)))
        assert error < high and (error > low or algorithm == "auto")


@each_algorithm
@pytest.mark.parametrize("problem", ODD, ids=str)
def test_odd_shapes(algorithm, problem):
    x, weight = operands(problem)
    with refusal_allowed(algorithm):
        assert_product(computed(problem, x, weight, algorithm), problem, x, weight, algorithm)


def test_calls_in_both_precisions_do_not_disturb_each_other():
    """conv2d keeps prepared launches between calls; those of one precision must not serve the other."""
    x, weight = operands(SMALL)
    truth = reference.conv2d(x, weight, (1, 1))
    for _ in range(2):
        for precision, least, most in (("fp32", 0, TOLERANCE), ("tf32", *ROUNDING)):
            out = conv2d(x, weight, padding=1, algorithm="tf32x3_gemm", precision=precision)
            assert least < rel_l2_error(out, truth) < most


@each_algorithm
@each_small
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_operands_have_the_range_of_float32(algorithm, problem, scale):
    x, weight = operands(problem)
    x, weight = x * scale, weight / scale
    with refusal_allowed(algorithm):
        assert_product(computed(problem, x, weight, algorithm), problem, x, weight, algorithm)


@each_algorithm
@each_small
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, 0x7F800000, -0x800000], ids=hex)
@pytest.mark.parametrize("operand", ["input", "weight"])
def test_nan_and_infinity_propagate_as_in_a_plain_sum(algorithm, problem, bits, operand):
    """NaN of several bit patterns, some of which an integer rounding would carry over into a number, and infinities."""
    x, weight = operands(problem)
    value = torch.tensor(bits, dtype=torch.int32, device="cuda").view(torch.float32)
    if operand == "input":
        x[1, 5, 6, 0] = value
    else:
        weight[7, 3, problem.kh // 2, -1] = value
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem)), TF32_TOLERANCE)


@each_algorithm
@each_small
def test_a_value_that_rounds_to_infinity_gives_finite_outputs(algorithm, problem):
    x, weight = operands(problem)
    x[1, 5, 6, 0] = torch.finfo(torch.float32).max
    weight *= 1e-3
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem)), TF32_TOLERANCE)


@each_algorithm
@pytest.mark.parametrize("problem", [SMALL, *UNEVEN], ids=str)
def test_bias_and_relu_follow_the_sum(algorithm, problem):
    x, weight = operands(problem)
    bias = bias_for(problem)
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm, bias=bias, relu=True)
        expected = computed(problem, x, weight, algorithm) + bias[:, None, None]
        assert torch.equal(out, torch.where(expected < 0, 0, expected))


@each_algorithm
@pytest.mark.parametrize("k", [1, 3])
def test_operands_need_only_the_alignment_of_a_float(algorithm, k):
    problem = ConvProblem(2, 16, 8, 8, 16, k, k, k // 2, k // 2)
    x, weight = operands(problem)

    def shifted(tensor):
        """The tensor four bytes after an aligned address."""
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    with refusal_allowed(algorithm):
        assert_product(computed(problem, shifted(x), shifted(weight), algorithm), problem, x, weight, algorithm)


def supported_configurations(algorithm, problem):
    """Configurations, with their kernels compiled; none where the algorithm refuses the problem.

    A refusal must not skip the test: the proof of the kernels is written only where no test is skipped.
    """
    try:
        algorithm.configure(problem, device_spec(torch.cuda.current_device()))
    except UnsupportedProblem:
        return []
    return configurations(algorithm, problem)


@pytest.mark.parametrize("problem", EVERY_CONFIGURATION, ids=lambda problem: problem.label)
@pytest.mark.parametrize("name", offering("tf32"))
def test_configurations_are_right_and_the_same_every_time(name, problem):
    algorithm = ALGORITHMS[name]
    x, weight = operands(problem)
    truth = rounded_truth(problem, x, weight)
    for config in supported_configurations(algorithm, problem):
        first = run(algorithm, problem, config, x, weight)
        assert rel_l2_error(first, truth) < SUM_TOLERANCE, config
        assert all(torch.equal(run(algorithm, problem, config, x, weight), first) for _ in range(5)), config


def test_a_problem_that_no_algorithm_computes_in_tf32_is_computed_in_fp32():
    problem = ConvProblem(1, 3, 40, 40, 8, 33, 33)
    x, weight = operands(problem)
    assert rel_l2_error(computed(problem, x, weight), reference.conv2d(x, weight)) < TOLERANCE


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    x, weight = operands(SMALL)
    operands_of_cupy = cupy.from_dlpack(x), cupy.from_dlpack(weight)
    out = conv2d(*operands_of_cupy, padding=1, algorithm="tf32x3_gemm", precision="tf32")
    assert rel_l2_error(torch.from_dlpack(out), rounded_truth(SMALL, x, weight)) < SUM_TOLERANCE


def test_an_algorithm_in_fp32_only_is_refused():
    x, weight = operands(SMALL)
    with pytest.raises(UnsupportedProblem, match="'two_stage' does not compute in precision='tf32'"):
        conv2d(x, weight, padding=1, algorithm="two_stage", precision="tf32")
