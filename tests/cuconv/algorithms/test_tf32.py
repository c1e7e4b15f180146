"""Tests of precision="tf32" without a GPU: the rounding of operands, the algorithms that offer it, and their plans."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, reference
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.kernel_set import holds
from cuconv.device import A100, H200
from cuconv.select import launches_of, plan, predicted_us
from tests.cuconv.algorithms.problems import TYPICAL, typical_problem
from tests.cuconv.layers import problems_of

OFFERING = offering("tf32")
IN_TF32 = replace(TYPICAL, precision="tf32")
each_device = pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-11, 1 + 2**-10),  # a tie goes away from zero
        (1 + 2**-11 - 2**-23, 1.0),
        (-1 - 2**-11, -1 - 2**-10),
        (2 - 2**-12, 2.0),
        (0.0, 0.0),
        (torch.finfo(torch.float32).max, torch.inf),  # the largest float is nearer to the next power of two
        (torch.inf, torch.inf),
        (-torch.inf, -torch.inf),
    ],
)
def test_rounding_to_tf32(value, rounded):
    assert reference.round_to_tf32(torch.tensor([value])).item() == rounded


def test_rounded_values_have_eleven_bits_and_are_the_nearest():
    x = torch.randn(10000, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-30, 30, 10000)
    rounded = reference.round_to_tf32(x)
    assert bool((rounded.view(torch.int32) & 0x1FFF == 0).all())
    assert bool(((rounded - x).abs() <= 2.0**-11 * 2 ** x.abs().log2().floor()).all())


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001])
def test_a_nan_of_any_bits_stays_a_nan(bits):
    assert reference.round_to_tf32(torch.tensor([bits], dtype=torch.int32).view(torch.float32)).isnan().all()


def test_rounding_has_the_error_that_verification_expects():
    """Within the tolerance for TF32, and far from FP32."""
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 64, 9, 9, generator=generator), torch.randn(32, 64, 3, 3, generator=generator)
    truth = reference.conv2d(x, weight, (1, 1))
    rounded = reference.conv2d(reference.round_to_tf32(x), reference.round_to_tf32(weight), (1, 1))
    error = float(torch.linalg.vector_norm(rounded - truth) / torch.linalg.vector_norm(truth))
    assert 2e-4 < error < 4e-4


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in OFFERING])
def test_an_algorithm_in_fp32_only_is_refused(algorithm):
    with pytest.raises(UnsupportedProblem, match=algorithm):
        plan(IN_TF32, H200, algorithm)


@each_device
def test_auto_takes_the_least_predicted_time_of_both_precisions(device):
    in_one_product = 0
    for plain in problems_of("paper", (1, 32)):
        problem = replace(plain, precision="tf32")
        chosen, in_fp32 = plan(problem, device), plan(plain, device)
        in_one_product += chosen.precision == "tf32"
        others = [in_fp32]
        for name in OFFERING:
            with suppress(UnsupportedProblem):
                others.append(plan(problem, device, name))
        for other in (one for one in others if holds(device.arch, launches_of(one, problem, CallOptions()))):
            assert predicted_us(problem, device, chosen) <= predicted_us(problem, device, other)
    assert in_one_product > 86, "half of the cases"


def test_a_problem_that_no_algorithm_computes_in_tf32_is_computed_in_fp32():
    large_filter = ConvProblem(1, 3, 40, 40, 80, 33, 33)
    assert plan(replace(large_filter, precision="tf32"), H200) == plan(large_filter, H200)
    assert plan(large_filter, H200).algorithm == "two_stage"


@pytest.mark.parametrize("name", OFFERING)
@pytest.mark.parametrize(("precision", "products"), [("fp32", 3), ("tf32", 1)])
def test_kernels_are_compiled_for_the_products_of_the_precision(name, precision, products):
    algorithm, problem = ALGORITHMS[name], replace(typical_problem(name), precision=precision)
    for config in algorithm.candidates(problem, H200):
        launches = algorithm.launches(problem, config)
        assert {launch.macros["PRODUCTS"] for launch in launches} == {products}
        assert str(config).endswith(" products=1") == (products == 1)


@pytest.mark.parametrize("exponent", [6, 14])
def test_values_scaled_to_fp16_round_as_to_tf32(exponent):
    """FP16 and TF32 differ only in ties, down to 2^-20 of the maximum and for every scale that keeps so much."""
    generator = torch.Generator().manual_seed(2)
    magnitudes = 2.0 ** torch.randint(-19, 1, (2, 64, 9, 9), generator=generator)
    x, weight = torch.randn(2, 64, 9, 9, generator=generator), torch.randn(32, 64, 3, 3, generator=generator)
    x, weight = x.clamp(-1.99, 1.99) * magnitudes, weight.clamp(-1.99, 1.99)
    in_fp16 = [2.0**-exponent * (2.0**exponent * operand).half().double() for operand in (x, weight)]
    in_tf32 = [reference.round_to_tf32(operand) for operand in (x, weight)]
    kept = x.abs() >= 2.0**-20
    assert bool(((in_fp16[0] - x).abs() <= 2.0**-11 * x.abs())[kept].all())
    ours, theirs = (reference.conv2d(*operands, (1, 1)) for operands in (in_fp16, in_tf32))
    assert torch.linalg.vector_norm(ours - theirs) < 3e-5 * torch.linalg.vector_norm(theirs)
