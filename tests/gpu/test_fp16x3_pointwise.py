"""Tests of configurations of fp16x3_pointwise on a GPU: layouts, scales that change with the chunk, alignment."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.pointwise.tiles import PixelLayout
from cuconv.device import device_spec
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    assert_scale_follows_chunks,
    assert_zeros_give_zeros,
    configurations,
    each_operand,
    each_precision,
    each_scales,
    run,
)
from tests.gpu.problems import (
    TOLERANCE,
    TOLERANCES,
    assert_same_with_non_finite,
    bias_for,
    operands,
    refusal_allowed,
    rel_l2_error,
)

NAME = "fp16x3_pointwise"
POINTWISE = ALGORITHMS[NAME]
SHIFTED = (PixelLayout.SHIFTED_8, PixelLayout.SHIFTED_4)

ODD = ConvProblem(3, 300, 13, 13, 200, 1, 1)  # the last chunk, filters and pixels are partly there
EVEN = ConvProblem(5, 192, 14, 14, 96, 1, 1)
MANY = ConvProblem(40, 48, 55, 55, 272, 1, 1)  # more tiles than blocks: resident weights change on the way
SINGLE = ConvProblem(24, 64, 28, 28, 256, 1, 1)  # all channels are one chunk; planes of whole vectors
UNALIGNED = ConvProblem(9, 63, 13, 13, 161, 1, 1)  # blocks that pack their weights read them one by one
STREAMED = ConvProblem(64, 512, 14, 14, 272, 1, 1)  # several filter tiles whose weights are not resident
DEEP = ConvProblem(8, 832, 8, 8, 128, 1, 1)  # few tiles: consumers share them
PAIRS = ConvProblem(7, 40, 11, 14, 48, 1, 1)  # planes of a multiple of two pixels, not of four
LONG = ConvProblem(8, 336, 22, 39, 27, 1, 1)  # the last tile of an image writes few pixels
IMAGES = ConvProblem(70, 832, 7, 7, 200, 1, 1)  # whole images; the last filters are partly there
PARTLY = ConvProblem(5, 36, 7, 7, 48, 1, 1)  # the same; the last chunk is partly there, and consumers have no image
OBLONG = ConvProblem(3, 300, 5, 9, 96, 1, 1)
MANY_IMAGES = ConvProblem(400, 64, 5, 10, 320, 1, 1)  # an even number of pixels; several filter tiles
UNEVEN = ConvProblem(56, 300, 13, 13, 304, 1, 1)  # a last wave of few tiles: tail split-K
WHOLE = [IMAGES, PARTLY, OBLONG, MANY_IMAGES]
PROBLEMS = [ODD, EVEN, MANY, SINGLE, UNALIGNED, STREAMED, DEEP, PAIRS, LONG, UNEVEN, *WHOLE]


def operands_at(problem, offset):
    """The operands, with the input `offset` floats after an aligned address."""
    x, weight = operands(problem)
    return torch.empty(x.numel() + offset, device="cuda")[offset:].view_as(x).copy_(x), weight


def assert_right_and_nothing_beside(problem, config, x, weight, truth, offset, aligned=True):
    """Run with an output `offset` floats before an aligned address, between floats that must stay NaN."""
    memory = torch.full((truth.numel() + 8,), torch.nan, device="cuda")
    out = memory[4 - offset : 4 - offset + truth.numel()].view_as(truth)
    run(POINTWISE, problem, config, x, weight, out, aligned=aligned)
    assert rel_l2_error(out, truth) < TOLERANCE, config
    assert memory.isnan().sum() == 8, config


def of_whole_images(problem):
    """The configurations in the layout of whole images; there is at least one."""
    found = configurations(POINTWISE, problem, lambda config: config.layout is PixelLayout.WHOLE_IMAGES)
    assert found
    return found


def test_last_waves_are_split_in_every_layout():
    spec = device_spec(torch.cuda.current_device())
    every = [config for problem in PROBLEMS for config in POINTWISE.candidates(problem, spec)]
    assert {config.layout for config in every if config.tail_split_k > 1} == set(PixelLayout)


@each_precision
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_configurations_are_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(POINTWISE, replace(problem, precision=precision), repeats=20)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_blocks_pack_weights_to_the_same_bits_as_the_kernel_ahead(problem):
    """Some channels are far below the others and one is all zero, so that channels have scales."""
    x, weight = operands(problem)
    weight[:, 3::7] *= 2.0**-20
    weight[:, 5] = 0
    outputs = {}
    for config in configurations(POINTWISE, problem):
        order_of_sums = config.filters, config.channels, config.sharers, config.tail_split_k
        out = run(POINTWISE, problem, config, x, weight)
        assert torch.equal(outputs.setdefault(order_of_sums, out), out), config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(POINTWISE, problem)


@each_precision
@pytest.mark.parametrize("problem", [ODD, EVEN, OBLONG], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales, precision):
    assert_scale_follows_chunks(NAME, problem, scales, precision)


@each_precision
def test_every_pixel_has_a_scale_of_its_own(precision):
    """Pixels of one tile and chunk are far apart in magnitude; each is as exact as if it were alone."""
    x, weight = operands(EVEN)
    scale = 10.0 ** torch.linspace(-15, 15, EVEN.h * EVEN.w, device="cuda").view(EVEN.h, EVEN.w)
    with refusal_allowed(NAME):
        out = conv2d(x * scale, weight, algorithm=NAME, precision=precision)
        assert rel_l2_error(out / scale, reference.conv2d(x * scale, weight) / scale) < TOLERANCES[precision]


@each_operand
def test_operands_may_start_anywhere(operand):
    assert_operand_may_start_anywhere(NAME, EVEN, operand)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("problem", [ODD, PAIRS, LONG], ids=str)
def test_shifted_layouts_begin_anywhere(problem, offset):
    """Input and output begin off 16 bytes, each by another distance."""
    x, weight = operands_at(problem, offset)
    truth = reference.conv2d(x, weight)
    shifted = [
        config
        for layout in SHIFTED
        for config in configurations(POINTWISE, problem, lambda config, layout=layout: config.layout is layout)
    ]
    assert {config.layout for config in shifted} == set(SHIFTED)
    for config in shifted:
        assert_right_and_nothing_beside(problem, config, x, weight, truth, offset)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("problem", WHOLE, ids=str)
def test_whole_images_are_written_and_nothing_beside_them(problem, offset):
    """Aligned operands take bulk copies and vectors, others single elements."""
    x, weight = operands_at(problem, offset)
    truth = reference.conv2d(x, weight)
    for config in of_whole_images(problem):
        assert_right_and_nothing_beside(problem, config, x, weight, truth, offset, aligned=offset == 0)


@pytest.mark.parametrize("problem", WHOLE, ids=str)
def test_every_plane_of_an_image_has_its_bias(problem):
    """A vector may belong to two planes; with split-K across the warpgroups it gets its bias on the way out."""
    x, weight = operands(problem)
    bias = bias_for(problem)
    truth = reference.conv2d(x, weight, bias=bias)
    for config in of_whole_images(problem):
        assert rel_l2_error(run(POINTWISE, problem, config, x, weight, bias=bias), truth) < TOLERANCE, config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_bias_and_relu(problem):
    x, weight = operands(problem)
    bias = bias_for(problem)
    x[0, 0, 0, 0] = torch.nan
    with refusal_allowed(NAME):
        out = conv2d(x, weight, bias, relu=True, algorithm=NAME)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, bias=bias, relu=True))


def test_zeros_give_zeros():
    assert_zeros_give_zeros(NAME, ODD)
