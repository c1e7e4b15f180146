"""The componentwise bound of every FP32 algorithm on all kinds of data, and images in a batch with unusual ones.

harness/experiments/accuracy has the kinds of data and the error: the c of docs/accuracy.md.
"""

import zlib
from functools import lru_cache
from typing import NamedTuple

import pytest
import torch

from cuconv import ConvProblem, algorithms, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.device import device_spec
from cuconv.select import BATCH_INVARIANT
from harness.experiments.accuracy.magnitudes import MAGNITUDES
from harness.experiments.accuracy.measure import componentwise_error
from tests.gpu.configurations import configurations, run
from tests.gpu.problems import bias_for, geometry, operands, poisoned_output, refusal_allowed

LARGEST_C = dict.fromkeys(algorithms(), 4.0) | {"fp16x3_winograd": 256.0, "fp16x3": 8.0, "fp16x3_pointwise": 8.0}
# Exceptions that docs/accuracy.md states: an output of few products, or of a large input at a small weight.
BEYOND = {"fp16x3_pointwise": ("sparse weights", "both exponents")}

# Planes of which a tile holds several images or a part of one, with few channels and with enough of them for split-K;
# channels and filters that no vector load or tile divides.
PROBLEMS = [
    *(ConvProblem(5, 37, 7, 7, 70, k, k, k // 2, k // 2) for k in (1, 3, 5)),
    *(ConvProblem(5, 100, 13, 13, 70, k, k, k // 2, k // 2) for k in (1, 3, 5)),
    ConvProblem(5, 520, 7, 7, 70, 1, 1),
    ConvProblem(5, 260, 7, 7, 70, 3, 3, 1, 1),
    ConvProblem(5, 20, 13, 13, 70, 1, 1),
    ConvProblem(5, 3, 13, 12, 70, 3, 3, 1, 1),
    ConvProblem(5, 64, 8, 8, 64, 1, 1),
    ConvProblem(5, 100, 1, 1, 70, 1, 1),
    ConvProblem(5, 37, 3, 5, 70, 3, 5),
    ConvProblem(5, 37, 13, 13, 70, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(5, 37, 13, 13, 70, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(5, 37, 13, 13, 70, 3, 3, 2, 2, dilation_h=2, dilation_w=2),
    ConvProblem(5, 3, 23, 21, 70, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(5, 74, 7, 7, 70, 3, 3, 1, 1, groups=2),
    ConvProblem(5, 37, 13, 13, 37, 3, 3, 1, 1, groups=37),
    ConvProblem(5, 37, 13, 13, 37, 5, 5, 2, 2, stride_h=2, stride_w=2, groups=37),
]
# Kinds that have a factor for each channel of the weights. Weights of grouped problems have fewer channels.
UNGROUPED = ("channels balanced", "channels of weights")

TF32X3 = [name for name in algorithms() if name.startswith("tf32x3_")]
# A problem or more that each algorithm of the family computes, with several images in a tile where it allows that.
BESIDE = [
    ConvProblem(5, 100, 7, 7, 70, 1, 1),
    ConvProblem(5, 37, 7, 7, 70, 3, 3, 1, 1),
    ConvProblem(5, 3, 7, 8, 70, 3, 3, 1, 1),
    ConvProblem(5, 20, 7, 7, 37, 1, 1),
    ConvProblem(5, 36, 6, 7, 40, 1, 1),
]
UNUSUAL = {"NaN": torch.nan, "Inf": torch.inf, "1e20": 1e20, "subnormal": 1e-41}  # a pixel, or the factor of an image
each_beside = pytest.mark.parametrize("problem", BESIDE, ids=str)


class Case(NamedTuple):
    """Operands of a kind of data, and the convolutions in float64 of them and of their absolute values."""

    x: torch.Tensor
    weight: torch.Tensor
    truth: torch.Tensor
    absolute: torch.Tensor


@lru_cache(maxsize=1)
def cases(problem: ConvProblem) -> dict[str, Case]:
    """The operands of every kind of data that a problem can have, by the kind's name; one problem is kept."""
    normal = operands(problem)
    found = {}
    for kind, make in MAGNITUDES.items():
        if problem.groups > 1 and kind in UNGROUPED:
            continue
        generator = torch.Generator("cuda").manual_seed(zlib.crc32(f"{problem} {kind}".encode()))
        data = make(problem, *normal, generator)
        truth = reference.conv2d(data.input, data.weight, **geometry(problem))
        absolute = reference.conv2d(data.input.abs(), data.weight.abs(), **geometry(problem))
        found[kind] = Case(data.input.contiguous(), data.weight.contiguous(), truth, absolute)
    return found


def c_of(problem: ConvProblem, case: Case, output: torch.Tensor) -> float:
    """The componentwise error c of an output; NaN if it is not finite."""
    return componentwise_error(output, case.truth, case.absolute, problem.group_channels * problem.filter_area)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two FP32 tensors are equal bit for bit."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def with_unusual_image(x: torch.Tensor, kind: str, image: int) -> torch.Tensor:
    """A copy of a batch with one element of an image replaced, or with the whole image made subnormal."""
    changed = x.clone()
    if kind == "subnormal":
        changed[image] *= UNUSUAL[kind]
    else:
        changed[image, x.shape[1] // 2, x.shape[2] // 2, x.shape[3] // 2] = UNUSUAL[kind]
    return changed


def algorithm_configurations(algorithm, problem):
    """Configurations of an algorithm, compiled; raises UnsupportedProblem where it has none."""
    algorithm.configure(problem, device_spec(torch.cuda.current_device()))  # raises before configurations() would skip
    return configurations(algorithm, problem)


@pytest.mark.parametrize("algorithm", algorithms())
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_componentwise_error_is_bounded_on_all_kinds_of_data(algorithm, problem):
    found = {}
    with refusal_allowed(algorithm, problem.is_dense):
        for kind, case in cases(problem).items():
            if kind in BEYOND.get(algorithm, ()):
                continue
            out = poisoned_output(problem)
            conv2d(case.x, case.weight, **geometry(problem), algorithm=algorithm, out=out)
            found[kind] = c_of(problem, case, out)
    limit = LARGEST_C[algorithm]
    bad = {kind: f"c = {c:.3g}" for kind, c in found.items() if not c <= limit}
    assert not bad, f"{algorithm} on {problem}: c is above {limit:g} on {bad}"


# Reductions of one step to several chains, for filters of one to five rows.
MEANS = [
    ConvProblem(8, c, 28, 28, 96, k, k, k // 2, k // 2)
    for c, k in ((4, 1), (8, 1), (16, 1), (64, 1), (480, 1), (64, 3), (64, 5))
]
MEANS += [ConvProblem(8, 3, 56, 56, 96, 3, 3, 1, 1), ConvProblem(8, 480, 1, 1, 96, 1, 1)]
MEANS += [ConvProblem(8, 16, 28, 28, 32, 5, 5, 2, 2)]  # fp16x3 multiplies by both parts of its weights at once
LARGEST_BIAS = 4e-8


@pytest.mark.parametrize("algorithm", algorithms())
@pytest.mark.parametrize("problem", MEANS, ids=str)
def test_errors_of_all_outputs_have_no_common_direction(algorithm, problem):
    """Sums that are all too small, above all: over the layers of a network, such errors add up and others cancel."""
    x, weight = operands(problem)
    with refusal_allowed(algorithm, problem.is_dense):
        y = conv2d(x, weight, **geometry(problem), algorithm=algorithm)
        truth = reference.conv2d(x, weight, **geometry(problem))
        bias = ((y.double() - truth) * truth).sum() / truth.square().sum()
        assert abs(bias) <= LARGEST_BIAS, f"{algorithm} on {problem}: outputs are {bias:+.2e} too large on average"


@pytest.mark.parametrize("name", TF32X3)
@each_beside
def test_configurations_of_tf32x3_are_within_the_bound_on_subnormal_data(name, problem):
    """Every output is a plain sum then; with ordinary images between, some are."""
    algorithm = ALGORITHMS[name]
    with refusal_allowed(name, problem.is_dense):
        configs = algorithm_configurations(algorithm, problem)
        x, weight = operands(problem)
        for images in ([0, 1, 2, 3, 4], [1, 3]):
            changed = x.clone()
            changed[images] *= UNUSUAL["subnormal"]
            truth = reference.conv2d(changed, weight, **geometry(problem))
            case = Case(changed, weight, truth, reference.conv2d(changed.abs(), weight.abs(), **geometry(problem)))
            for config in configs:
                c = c_of(problem, case, run(algorithm, problem, config, changed, weight))
                assert c <= LARGEST_C[name], f"{name} {config} on {problem}, images {images} subnormal: c = {c:.3g}"


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("name", TF32X3)
@each_beside
def test_images_beside_an_unusual_one_keep_their_bits_in_configurations_of_tf32x3(name, problem, kind):
    algorithm, image = ALGORITHMS[name], 2
    others = [n for n in range(problem.n) if n != image]
    with refusal_allowed(name, problem.is_dense):
        configs = algorithm_configurations(algorithm, problem)
        x, weight = operands(problem)
        changed = with_unusual_image(x, kind, image)
        for config in configs:
            expected = run(algorithm, problem, config, x, weight)[others]
            output = run(algorithm, problem, config, changed, weight)[others]
            assert same_bits(output, expected), f"{name} {config} on {problem}: {kind} changes other images"


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("problem", [*BESIDE, *PROBLEMS], ids=str)
def test_a_batch_has_the_same_bits_with_and_without_an_unusual_image(problem, kind):
    x, weight = operands(problem)
    image = 2
    others = [n for n in range(problem.n) if n != image]

    def convolve(batch):
        return conv2d(batch, weight, **geometry(problem), algorithm=BATCH_INVARIANT)

    output = convolve(with_unusual_image(x, kind, image))[others]
    assert same_bits(output, convolve(x[others])), f"{BATCH_INVARIANT} on {problem}: {kind} changes other images"


@pytest.mark.parametrize("name", TF32X3)
@each_beside
def test_bias_residual_and_relu_follow_sums_that_are_computed_again(name, problem):
    """Two images are subnormal, and so is what is added: no output is that of an operand alone."""
    x, weight = operands(problem)
    x[[1, 3]] *= UNUSUAL["subnormal"]
    bias = bias_for(problem) * UNUSUAL["subnormal"]
    generator = torch.Generator("cuda").manual_seed(5)
    residual = torch.randn(problem.output_shape, generator=generator, device="cuda") * UNUSUAL["subnormal"]
    with refusal_allowed(name, problem.is_dense):
        plain = conv2d(x, weight, **geometry(problem), algorithm=name)
        expected = plain + bias[:, None, None]
        output = conv2d(x, weight, bias, **geometry(problem), relu=True, algorithm=name)
        assert torch.equal(output, expected.clamp(min=0)), f"{name} on {problem}: bias and ReLU"
        output = conv2d(x, weight, bias, **geometry(problem), relu=True, residual=residual, algorithm=name)
        wanted = (expected + residual).clamp(min=0)
        # With a residual another configuration may be the fastest; sums that are computed again do not depend on it.
        assert torch.equal(output[[1, 3]], wanted[[1, 3]]), f"{name} on {problem}: residual"
        assert torch.allclose(output, wanted, rtol=1e-5, atol=1e-5), f"{name} on {problem}: residual"
