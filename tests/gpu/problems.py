"""The problems that every algorithm is tested with on a GPU, why each is there, and how outputs are checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from harness.cases.catalogue import load_sweep

# The relative L2 error of plain FP32 accumulation over up to 4608 products, doubled.
TOLERANCE = 3e-6
TOLERANCES = {"fp32": TOLERANCE, "tf32": 4e-4}  # in TF32 the error of rounding both operands

LAYERS = [case.problem for case in load_sweep("full", batches=[1, 8]).cases]

ODD = [
    # Sizes around a warp and a block of pixels, H != W, and odd numbers of channels and filters, which no vector load
    # or group of rows divides.
    *(
        ConvProblem(n, c, h, w, m, k, k, k // 2, k // 2)
        for k in (1, 3, 5, 7)
        for n, c, h, w, m in [
            (1, 1, 1, 1, 1),
            (1, 3, 1, 65, 17),
            (2, 17, 65, 2, 3),
            (3, 31, 9, 33, 31),
            (5, 17, 32, 31, 1),
        ]
    ),
    # No padding, padding on one axis, padding beyond the filter, filters that are not square or odd.
    ConvProblem(2, 3, 12, 9, 17, 5, 5),
    ConvProblem(2, 3, 12, 9, 17, 3, 5, 0, 2),
    ConvProblem(1, 3, 4, 5, 2, 3, 3, 4, 4),
    ConvProblem(2, 7, 6, 8, 5, 2, 4, 1, 0),
    # Filter rows longer than a block's shared memory at any number of rows.
    ConvProblem(1, 9001, 3, 5, 9, 1, 1),
    ConvProblem(1, 1031, 4, 4, 33, 3, 3, 1, 1),
    # All weight rows fit the stages of fp16x3: of several chunks of channels, several tiles of filters, one chunk.
    ConvProblem(5, 48, 9, 20, 40, 1, 7, 0, 3),
    ConvProblem(3, 16, 21, 20, 150, 2, 2, 1, 1),
    ConvProblem(70, 16, 28, 28, 32, 5, 5, 2, 2),
    # More filters than a grid's second dimension could count.
    ConvProblem(1, 2, 2, 3, 66000, 1, 1),
]

# For bias and ReLU: planes and numbers of filters that no vector store or tile divides, with one image and several,
# with few channels and with enough of them for split-K.
UNEVEN = [
    *(ConvProblem(3, 24, 13, 7, 37, k, k, k // 2, k // 2) for k in (1, 3, 5)),
    ConvProblem(1, 1, 1, 1, 1, 1, 1),
    ConvProblem(2, 3, 1, 65, 17, 3, 3, 1, 1),
    ConvProblem(1, 832, 7, 7, 33, 1, 1),
    ConvProblem(1, 512, 7, 7, 131, 3, 3, 1, 1),
    ConvProblem(9, 64, 7, 7, 129, 1, 1),
]


# Strides, dilations and groups above 1: alone and together, unequal on the axes, with and without padding, above the
# filter's size, with few and many channels, with one channel or one filter a group.
SPARSE = [
    ConvProblem(2, 24, 15, 14, 40, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(1, 512, 14, 14, 72, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(3, 33, 13, 17, 36, 3, 3, 1, 1, stride_h=1, stride_w=2),
    ConvProblem(2, 3, 47, 45, 64, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(1, 3, 64, 63, 33, 11, 11, 2, 2, stride_h=4, stride_w=4),
    ConvProblem(1, 3, 40, 40, 20, 8, 8, 0, 4, stride_h=8, stride_w=8),
    ConvProblem(2, 64, 14, 14, 130, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(1, 257, 9, 11, 32, 1, 1, stride_h=3, stride_w=2),
    ConvProblem(2, 16, 8, 9, 17, 1, 1, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(1, 16, 9, 9, 16, 2, 2, stride_h=3, stride_w=4),
    ConvProblem(2, 32, 16, 16, 48, 3, 3, 2, 2, dilation_h=2, dilation_w=2),
    ConvProblem(1, 40, 20, 18, 33, 3, 5, 4, 8, dilation_h=4, dilation_w=4),
    ConvProblem(1, 19, 12, 25, 24, 3, 3, 1, 0, stride_h=2, dilation_h=1, dilation_w=12),
    ConvProblem(2, 64, 14, 14, 64, 3, 3, 1, 1, groups=2),
    ConvProblem(1, 256, 14, 14, 256, 3, 3, 1, 1, groups=32),
    ConvProblem(2, 30, 9, 10, 45, 3, 3, 1, 1, stride_h=2, stride_w=2, groups=15),
    ConvProblem(1, 96, 12, 13, 40, 1, 1, groups=4),
    ConvProblem(2, 28, 11, 12, 28, 3, 3, 1, 1, groups=28),
    ConvProblem(1, 10, 17, 15, 30, 5, 5, 2, 2, stride_h=2, stride_w=2, groups=10),
    ConvProblem(3, 9, 10, 8, 9, 7, 7, 3, 3, groups=9),
    ConvProblem(1, 64, 30, 30, 6, 3, 3, 3, 3, stride_h=2, stride_w=3, dilation_h=3, dilation_w=2, groups=2),
    ConvProblem(1, 2048, 1, 1, 1000, 1, 1),
    ConvProblem(3, 65, 1, 1, 7, 1, 1),
    ConvProblem(33, 960, 1, 1, 242, 1, 1),
    ConvProblem(6, 16, 5, 7, 33, 5, 7),
    ConvProblem(4, 128, 28, 28, 320, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(16, 512, 14, 14, 1024, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(1, 3, 40, 41, 9, 9, 8),
]


def operands(problem: ConvProblem, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and weight for a problem: normal data on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(problem.input_shape, generator=generator, device="cuda")
    return x, torch.randn(problem.weight_shape, generator=generator, device="cuda")


def bias_for(problem: ConvProblem, seed: int = 4) -> torch.Tensor:
    """A bias as large as the sums that it is added to, so that the bias of a wrong filter shows."""
    generator = torch.Generator("cuda").manual_seed(seed)
    scale = (problem.group_channels * problem.filter_area) ** 0.5
    return scale * torch.randn(problem.m, generator=generator, device="cuda")


def pads(problem: ConvProblem) -> tuple[int, int]:
    """The padding of a problem as (vertical, horizontal)."""
    return problem.pad_h, problem.pad_w


def geometry(problem: ConvProblem) -> dict[str, Any]:
    """The stride, padding, dilation and groups of a problem, as conv2d and the reference take them."""
    return problem.geometry


def rel_l2_error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """||output - truth|| / ||truth||, the relative L2 error."""
    return float(torch.linalg.vector_norm(output.double() - truth) / torch.linalg.vector_norm(truth))


def poisoned_output(problem: ConvProblem) -> torch.Tensor:
    """An output full of NaN, which shows every element that is not written."""
    return torch.full(problem.output_shape, torch.nan, device="cuda")


def error_of(problem: ConvProblem, algorithm: str) -> float:
    """The relative L2 error of an algorithm on normal data; NaN unless it writes every element."""
    x, weight = operands(problem)
    out = poisoned_output(problem)
    conv2d(x, weight, **geometry(problem), algorithm=algorithm, precision=problem.precision, out=out)
    return rel_l2_error(out, reference.conv2d(x, weight, **geometry(problem)))


def assert_same_with_non_finite(output: torch.Tensor, truth: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    """Check that NaN and both infinities are in the same places and that the rest is within the tolerance."""
    output = output.double()
    assert torch.equal(output.isnan(), truth.isnan())
    assert torch.equal(output.isposinf(), truth.isposinf()) and torch.equal(output.isneginf(), truth.isneginf())
    output, truth = output[truth.isfinite()], truth[truth.isfinite()]
    # A product, since the norm of the truth is 0 where ReLU leaves only zeros.
    assert torch.linalg.vector_norm(output - truth) <= tolerance * torch.linalg.vector_norm(truth)


@contextmanager
def refusal_allowed(algorithm: str, dense: bool = True) -> Iterator[None]:
    """Let an algorithm refuse an unusual problem, unless it is auto or one that computes everything.

    That is two_stage for dense problems, those of stride 1, dilation 1 and one group, and tf32x3_gemm for others.
    """
    try:
        yield
    except UnsupportedProblem:
        assert algorithm not in ("auto", "two_stage" if dense else "tf32x3_gemm"), "these two compute everything"
