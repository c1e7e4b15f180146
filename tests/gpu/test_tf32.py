"""precision="tf32": the product of rounded factors, neither less exact nor more, by every algorithm that offers it."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.device import device_spec
from cuconv.jit import LaunchSequence
from harness.measure.compiling import Compiler, compile_for, forms_of
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

# Of the sums of rounded factors: the tensor cores truncate as they add up, over the whole reduction; in FP16 ties are
# rounded to even, which makes 1e-5.
SUM_TOLERANCE = 1e-4
ROUNDING = 2e-4, 4e-4  # relative L2 error of rounding both factors, where many of them are added
IN_TF32 = 1e-3

SMALL = ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1)
POINTWISE = ConvProblem(3, 24, 14, 13, 40, 1, 1)
EVERY_CONFIGURATION = [
    ConvProblem(1, 130, 7, 9, 40, 3, 3, 1, 1, "tf32"),
    ConvProblem(2, 1050, 7, 9, 140, 1, 1, 1, 0, "tf32"),
    ConvProblem(2, 1050, 6, 7, 140, 1, 1, 0, 0, "tf32"),  # pixels in pairs
]
each_algorithm = pytest.mark.parametrize("algorithm", ["auto", *offering("tf32")])
each_small = pytest.mark.parametrize("problem", [SMALL, POINTWISE], ids=str)


def rounded_truth(problem, x, weight, *options):
    rounded = [reference.round_to_tf32(operand) for operand in (x, weight)]
    return reference.conv2d(*rounded, pads(problem), *options)


def computed(problem, x, weight, algorithm="auto", **options):
    """Into a poisoned output."""
    out = poisoned_output(problem)
    return conv2d(x, weight, padding=pads(problem), algorithm=algorithm, precision="tf32", out=out, **options)


def assert_product(out, problem, x, weight, algorithm):
    """Of rounded factors; auto may also compute in FP32."""
    errors = [rel_l2_error(out, rounded_truth(problem, x, weight))]
    if algorithm == "auto":
        errors.append(rel_l2_error(out, reference.conv2d(x, weight, pads(problem))))
    assert min(errors) < SUM_TOLERANCE


@pytest.fixture(scope="module")
def compiled():
    """The kernels of all layers, side by side: one after the other, as they are met, they would take minutes."""
    spec = device_spec(torch.cuda.current_device())
    compile_for([replace(problem, precision="tf32") for problem in LAYERS], spec, ["auto", *offering("tf32")])


@each_algorithm
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("problem", LAYERS, ids=lambda problem: problem.label)
def test_layers_are_of_the_class_and_no_better(algorithm, problem):
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


def test_the_same_call_in_fp32_is_not_rounded():
    """One after the other: what a call has made ready is not the other's."""
    x, weight = operands(SMALL)
    truth = reference.conv2d(x, weight, (1, 1))
    for _ in range(2):
        assert rel_l2_error(conv2d(x, weight, padding=1), truth) < TOLERANCE
        assert rel_l2_error(conv2d(x, weight, padding=1, precision="tf32"), truth) > ROUNDING[0]


@each_algorithm
@each_small
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_magnitudes_are_those_of_float32(algorithm, problem, scale):
    x, weight = operands(problem)
    x, weight = x * scale, weight / scale
    with refusal_allowed(algorithm):
        assert_product(computed(problem, x, weight, algorithm), problem, x, weight, algorithm)


@each_algorithm
@each_small
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, 0x7F800000, -0x800000], ids=hex)
@pytest.mark.parametrize("operand", ["input", "weight"])
def test_nan_and_infinity_go_where_a_plain_sum_takes_them(algorithm, problem, bits, operand):
    """NaN of any bits, some of which rounding would carry over into a finite number, and infinities."""
    x, weight = operands(problem)
    value = torch.tensor(bits, dtype=torch.int32, device="cuda").view(torch.float32)
    if operand == "input":
        x[1, 5, 6, 0] = value
    else:
        weight[7, 3, problem.kh // 2, -1] = value
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem)), IN_TF32)


@each_algorithm
@each_small
def test_a_value_that_rounds_to_infinity_is_finite(algorithm, problem):
    x, weight = operands(problem)
    x[1, 5, 6, 0] = torch.finfo(torch.float32).max
    weight *= 1e-3
    with refusal_allowed(algorithm):
        out = computed(problem, x, weight, algorithm)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem)), IN_TF32)


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
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    with refusal_allowed(algorithm):
        assert_product(computed(problem, shifted(x), shifted(weight), algorithm), problem, x, weight, algorithm)


def configurations(name, problem):
    """Each with its launches, compiled; none on another architecture."""
    algorithm, spec = ALGORITHMS[name], device_spec(torch.cuda.current_device())
    found = {}
    with refusal_allowed(name):
        for config in algorithm.candidates(problem, spec):
            found[config] = algorithm.launches(problem, config, aligned=True, relu=False)
    with Compiler(spec.arch) as compiler:
        forms = forms_of(launch for launches in found.values() for launch in launches)
        compiler.start(forms)
        compiler.wait_for(forms)
    return found


@pytest.mark.parametrize("problem", EVERY_CONFIGURATION, ids=lambda problem: problem.label)
@pytest.mark.parametrize("name", offering("tf32"))
def test_every_configuration_is_right_and_the_same_every_time(name, problem):
    device = torch.cuda.current_device()
    arch = device_spec(device).arch
    x, weight = operands(problem)
    truth = rounded_truth(problem, x, weight)
    stream = torch.cuda.current_stream().cuda_stream
    for config, launches in configurations(name, problem).items():
        workspace = torch.full((config.workspace_bytes // 4 + 1,), torch.nan, device="cuda")
        sequence = LaunchSequence(launches, arch, device)

        def run(sequence=sequence, workspace=workspace):
            out = poisoned_output(problem)
            sequence.enqueue(stream, x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), workspace.data_ptr())
            return out

        first = run()
        assert rel_l2_error(first, truth) < SUM_TOLERANCE, config
        assert all(torch.equal(run(), first) for _ in range(5)), config


def test_what_nobody_computes_in_tf32_is_computed_in_fp32():
    problem = ConvProblem(1, 3, 20, 20, 8, 11, 11)
    x, weight = operands(problem)
    assert rel_l2_error(computed(problem, x, weight), reference.conv2d(x, weight)) < TOLERANCE


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    x, weight = operands(SMALL)
    out = conv2d(cupy.from_dlpack(x), cupy.from_dlpack(weight), padding=1, precision="tf32")
    assert rel_l2_error(torch.from_dlpack(out), rounded_truth(SMALL, x, weight)) < SUM_TOLERANCE


def test_an_algorithm_in_fp32_only_is_refused():
    x, weight = operands(SMALL)
    with pytest.raises(UnsupportedProblem, match="'two_stage' does not compute in precision='tf32'"):
        conv2d(x, weight, padding=1, algorithm="two_stage", precision="tf32")
