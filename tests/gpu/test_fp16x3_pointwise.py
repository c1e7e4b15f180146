"""Every tile of the 1x1 kernel on FP16 tensor cores, scales that change from chunk to chunk, unaligned operands."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms.pointwise import fp16x3_pointwise
from cuconv.algorithms.pointwise.variants import SHIFTED, Form
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
ODD = ConvProblem(3, 300, 13, 13, 200, 1, 1)  # the last chunk, the last filters and the last pixels are partly there
EVEN = ConvProblem(5, 192, 14, 14, 96, 1, 1)
MANY = ConvProblem(40, 48, 55, 55, 272, 1, 1)  # more tiles than blocks: weights change under way
SINGLE = ConvProblem(24, 64, 28, 28, 256, 1, 1)  # a chunk of all channels, planes of whole vectors
UNALIGNED = ConvProblem(9, 63, 13, 13, 161, 1, 1)  # blocks that split weights themselves read them one by one
STREAMED = ConvProblem(64, 512, 14, 14, 272, 1, 1)  # several tiles of filters whose weights do not stay
DEEP = ConvProblem(8, 832, 8, 8, 128, 1, 1)  # few tiles: teams share them
PAIRS = ConvProblem(7, 40, 11, 14, 48, 1, 1)  # planes of a multiple of two pixels, not of four
LONG = ConvProblem(8, 336, 22, 39, 27, 1, 1)  # the last row of an image has few pixels of its own
IMAGES = ConvProblem(70, 832, 7, 7, 200, 1, 1)  # teams have whole images; the last filters are partly there
PARTLY = ConvProblem(5, 36, 7, 7, 48, 1, 1)  # the same, but for the last chunk, and for teams without an image
OBLONG = ConvProblem(3, 300, 5, 9, 96, 1, 1)
MANY_IMAGES = ConvProblem(400, 64, 5, 10, 320, 1, 1)  # of an even number of pixels, in a chunk; tiles of other filters
UNEVEN = ConvProblem(56, 300, 13, 13, 304, 1, 1)  # a last round of few tiles, which several blocks share
WHOLE = [IMAGES, PARTLY, OBLONG, MANY_IMAGES]
PROBLEMS = [ODD, EVEN, MANY, SINGLE, UNALIGNED, STREAMED, DEEP, PAIRS, LONG, UNEVEN, *WHOLE]


def test_last_rounds_are_split_in_every_form():
    split = [config for problem in PROBLEMS for config in configurations(fp16x3_pointwise, problem)]
    assert {config.form for config in split if config.split_last > 1} == set(Form)


@each_precision
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_configuration_is_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(fp16x3_pointwise, replace(problem, precision=precision), repeats=20)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_weights_are_split_to_the_same_bits_by_blocks_themselves(problem):
    """Channels far below the others, and one of zeros, so that there are scales to get right."""
    configs = configurations(fp16x3_pointwise, problem)
    x, weight = operands(problem)
    weight[:, 3::7] *= 2.0**-20
    weight[:, 5] = 0
    outputs = {}
    for config in configs:
        what = config.filters, config.channels, config.joint and config.teams, config.split_last
        out = run(fp16x3_pointwise, problem, config, x, weight)
        assert torch.equal(outputs.setdefault(what, out), out), config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(fp16x3_pointwise, problem)


@each_precision
@pytest.mark.parametrize("problem", [ODD, EVEN, OBLONG], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales, precision):
    assert_scale_follows_chunks(NAME, problem, scales, precision)


@each_precision
def test_every_pixel_has_a_scale_of_its_own(precision):
    """Neighbours in a tile and chunk far apart in magnitude: each is as exact as if it were alone."""
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
def test_shifted_rows_begin_anywhere(problem, offset):
    """Operands that begin off sixteen bytes, each by another distance; nothing beside the output is written."""
    x, weight = operands(problem)
    truth = reference.conv2d(x, weight)
    moved = torch.empty(x.numel() + offset, device="cuda")[offset:].view_as(x).copy_(x)
    shifted = [config for config in configurations(fp16x3_pointwise, problem) if config.form in SHIFTED]
    assert {config.form for config in shifted} == set(SHIFTED)
    for config in shifted:
        memory = torch.full((truth.numel() + 8,), torch.nan, device="cuda")
        out = memory[4 - offset : 4 - offset + truth.numel()].view_as(truth)
        run(fp16x3_pointwise, problem, config, moved, weight, out)
        assert rel_l2_error(out, truth) < TOLERANCE, config
        assert memory.isnan().sum() == 8, config


def images_of(problem):
    found = [config for config in configurations(fp16x3_pointwise, problem) if config.form is Form.IMAGES]
    assert found
    return found


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("problem", WHOLE, ids=str)
def test_images_are_written_and_nothing_beside_them(problem, offset):
    """By bulk copies and vectors, and by single elements where the operands begin off sixteen bytes."""
    x, weight = operands(problem)
    truth = reference.conv2d(x, weight)
    moved = torch.empty(x.numel() + offset, device="cuda")[offset:].view_as(x).copy_(x)
    for config in images_of(problem):
        memory = torch.full((truth.numel() + 8,), torch.nan, device="cuda")
        out = memory[4 - offset : 4 - offset + truth.numel()].view_as(truth)
        run(fp16x3_pointwise, problem, config, moved, weight, out, aligned=offset == 0)
        assert rel_l2_error(out, truth) < TOLERANCE, config
        assert memory.isnan().sum() == 8, config


@pytest.mark.parametrize("problem", WHOLE, ids=str)
def test_every_plane_of_an_image_has_its_bias(problem):
    """Vectors of shared tiles, which get theirs on the way out, are of two planes where these meet."""
    x, weight = operands(problem)
    bias = bias_for(problem)
    truth = reference.conv2d(x, weight, bias=bias)
    for config in images_of(problem):
        assert rel_l2_error(run(fp16x3_pointwise, problem, config, x, weight, bias=bias), truth) < TOLERANCE, config


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
