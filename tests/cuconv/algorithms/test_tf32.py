"""precision="tf32": what is rounded, who computes it, and what is said where nobody can."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, algorithms, reference
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.fp16x3.fp16x3 import fp16x3
from cuconv.algorithms.pointwise import fp16x3_pointwise
from cuconv.algorithms.common.implicit_gemm import tf32x3_wgmma
from cuconv.algorithms.common.weight_packing import Split
from cuconv.device import A100, H200
from cuconv.select import plan, predicted_us
from harness.catalogue import load_sweep
from harness.contenders import cuconv_gpu

OFFERING = ("tf32x3_gemm", "tf32x3_wgmma", "tf32x3_presplit", "tf32x3_shallow", "tf32x3_stationary")
OFFERING += ("fp16x3", "fp16x3_pointwise")
PROBLEM = ConvProblem(8, 96, 28, 28, 128, 3, 3, 1, 1)
POINTWISE = ConvProblem(8, 96, 28, 28, 128, 1, 1)
SHALLOW = ConvProblem(8, 3, 28, 28, 128, 3, 3, 1, 1)
SPECIAL = {"tf32x3_shallow": SHALLOW, "tf32x3_stationary": POINTWISE, "fp16x3_pointwise": POINTWISE}
IN_TF32 = replace(PROBLEM, precision="tf32")
each_device = pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)


def in_tf32(problem: ConvProblem) -> ConvProblem:
    return replace(problem, precision="tf32")


def plans(problem, device, names=OFFERING):
    """Of those of the algorithms that compute the problem."""
    found = {}
    for name in names:
        with suppress(UnsupportedProblem):
            found[name] = plan(problem, device, name)
    return found


def float_of(bits: int) -> float:
    return float(torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32))


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-11, 1 + 2**-10),  # half way, away from zero
        (1 + 2**-11 - 2**-23, 1.0),
        (-1 - 2**-11, -1 - 2**-10),
        (2 - 2**-12, 2.0),
        (0.0, 0.0),
        (float_of(0x7F7FFFFF), torch.inf),  # the largest float is nearer to the next power of two
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
def test_a_nan_stays_one_whatever_its_bits(bits):
    assert reference.round_to_tf32(torch.tensor([bits], dtype=torch.int32).view(torch.float32)).isnan().all()


def test_the_error_of_rounding_is_that_of_the_class():
    """As accurate as verification expects, and far from FP32."""
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 64, 9, 9, generator=generator), torch.randn(32, 64, 3, 3, generator=generator)
    truth = reference.conv2d(x, weight, (1, 1))
    rounded = reference.conv2d(reference.round_to_tf32(x), reference.round_to_tf32(weight), (1, 1))
    error = float(torch.linalg.vector_norm(rounded - truth) / torch.linalg.vector_norm(truth))
    assert 2e-4 < error < 4e-4


def test_who_offers_what():
    assert offering("tf32") == OFFERING
    assert offering("fp32") == algorithms()


@pytest.mark.parametrize("precision", ["bf16", "TF32", None, 32, True])
def test_an_unknown_precision_names_the_known_ones(precision):
    with pytest.raises(UnsupportedProblem, match="must be one of fp32, tf32") as caught:
        ConvProblem(1, 1, 3, 3, 1, 1, 1, precision=precision)
    assert f"precision={precision!r}" in str(caught.value)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in OFFERING])
def test_an_algorithm_that_does_not_offer_it_names_those_that_do(algorithm):
    wanted = f"algorithm='{algorithm}' does not compute in precision='tf32': must be one of auto, {', '.join(OFFERING)}"
    with pytest.raises(UnsupportedProblem) as caught:
        plan(IN_TF32, H200, algorithm)
    assert str(caught.value) == wanted


@each_device
def test_auto_takes_the_least_predicted_time_of_those_that_offer_it_and_those_in_fp32(device):
    rounded = 0
    for case in load_sweep("paper", batches=[1, 32]).cases:
        problem = replace(case.problem, precision="tf32")
        chosen, in_fp32 = plan(problem, device), plan(case.problem, device)
        rounded += chosen.algorithm in OFFERING and chosen.config.products == 1
        for other in [in_fp32, *plans(problem, device).values()]:
            assert predicted_us(problem, device, chosen) <= predicted_us(problem, device, other)
    assert rounded > 86  # of 172


def test_what_nobody_computes_in_tf32_is_computed_in_fp32():
    """Allowed to round is not obliged to."""
    large_filter = ConvProblem(1, 3, 20, 20, 8, 11, 11, precision="tf32")
    assert plan(large_filter, H200) == plan(replace(large_filter, precision="fp32"), H200)
    assert plan(large_filter, H200).algorithm == "two_stage"


@each_device
def test_one_product_is_predicted_to_take_less_than_three(device):
    problems = [case.problem for case in load_sweep("paper", batches=[1, 32]).cases]
    for name in OFFERING if device is H200 else OFFERING[:1]:
        times = {1: 0.0, 3: 0.0}
        for problem in problems:
            for same in (problem, in_tf32(problem)):
                for computed in plans(same, device, [name]).values():
                    times[computed.config.products] += predicted_us(same, device, computed)
        clearly = 1 if name == "tf32x3_shallow" else 0.95  # it waits for memory, whatever the products
        assert 0 < times[1] < clearly * times[3], name


@pytest.mark.parametrize("name", OFFERING)
def test_every_kernel_is_compiled_for_the_products_of_its_configuration(name):
    algorithm, in_fp32 = ALGORITHMS[name], SPECIAL.get(name, PROBLEM)
    for problem, products in ((in_fp32, 3), (in_tf32(in_fp32), 1)):
        for config in algorithm.candidates(problem, H200):
            launches = algorithm.launches(problem, config, aligned=True, relu=False)
            assert {launch.macros["PRODUCTS"] for launch in launches} == {products}
            assert str(config).endswith(" products=1") == (products == 1)


def test_small_parts_take_no_memory():
    assert all(tile.pipeline_bytes(1) * 2 == tile.pipeline_bytes(3) for tile in tf32x3_wgmma.TILES)


def test_low_parts_take_no_memory():
    """What they leave is filled with stages."""
    three, one = (Split(64, 16, products).workspace_bytes(PROBLEM) for products in (3, 1))
    assert three - one == 2 * PROBLEM.m * PROBLEM.c * PROBLEM.filter_area
    three, one = ({(c.tile, c.blocks): c for c in fp16x3.candidates(p, H200)} for p in (PROBLEM, IN_TF32))
    assert all(one[size].input_stages > three[size].input_stages for size in three)
    assert all(one[size].weight_stages > three[size].weight_stages for size in three)
    three, one = (fp16x3_pointwise.candidates(p, H200) for p in (POINTWISE, in_tf32(POINTWISE)))
    assert max(c.stages for c in one if c.resident) >= max(c.stages for c in three if c.resident)


@pytest.mark.parametrize("exponent", [6, 14])
def test_scaled_to_fp16_values_round_as_to_tf32(exponent):
    """But for ties, and down to 2^-20 of the maximum, wherever the scale leaves that."""
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


def test_a_plan_says_that_it_is_in_tf32():
    assert str(cuconv.plan(IN_TF32, H200)).endswith("products=1")
    assert "products" not in str(cuconv.plan(PROBLEM, H200))


def test_the_contender_offers_what_computes_in_its_precision():
    contender = object.__new__(cuconv_gpu.Contender)  # without a GPU
    for precision, names in (("fp32", algorithms()), ("tf32", OFFERING)):
        contender.precision = precision
        offers = contender.offers(PROBLEM, None, 0)
        assert [offer.algorithm for offer in offers] == ["auto", *names]
        assert {offer.precision for offer in offers} == {precision}
