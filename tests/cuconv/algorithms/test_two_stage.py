"""The launch geometry of the paper's algorithm: a pure function of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.two_stage.two_stage import PLANES_BYTES, REUSE
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from cuconv.device import A100, H200
from tests.cuconv.layers import problems_of

two_stage = ALGORITHMS["two_stage"]

PAPER = problems_of("paper")
each_device = pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)


def one_by_one(n=1, c=64, hw=14, m=64):
    return ConvProblem(n=n, c=c, h=hw, w=hw, m=m, kh=1, kw=1)


@each_device
def test_grid_covers_every_dot_product_of_the_papers_cases(device):
    for problem in PAPER:
        config = two_stage.configure(problem, device)
        pixels = config.images_per_pass * problem.out_pixels
        row_groups = ceil(problem.m / config.rows) * problem.filter_area
        pixel_blocks = config.blocks // row_groups
        assert config.blocks == row_groups * pixel_blocks
        covered = pixel_blocks * config.threads * config.dots
        assert pixels <= covered < pixels + config.threads * config.dots, problem.label


@each_device
def test_every_configuration_is_one_that_the_hardware_and_the_variants_allow(device):
    for problem in PAPER:
        config = two_stage.configure(problem, device)
        for launch in two_stage.launches(problem, config):
            assert launch.macros in two_stage.variants(device.arch)
        assert config.threads % 32 == 0 and 32 <= config.threads <= 1024
        assert config.shared_bytes <= 48 * 1024
        assert 1 <= config.channels_per_pass <= problem.c
        assert config.blocks < 2**31 and config.sum_blocks < 2**31


def test_one_row_a_block_where_more_would_leave_sms_idle():
    config = two_stage.configure(one_by_one(c=832, hw=7, m=256), H200)
    assert (config.rows, config.dots, config.blocks) == (1, 1, 256)


def test_a_row_is_split_over_blocks_that_could_each_hold_it():
    config = two_stage.configure(one_by_one(hw=28, m=16), H200)
    assert config.rows == 1
    assert config.blocks == 16 * ceil(784 / 256)


def test_large_problems_reuse_each_loaded_element_most():
    config = two_stage.configure(one_by_one(n=64, hw=56, m=256), H200)
    assert (config.rows, config.dots) == REUSE[0]


def test_workspace_is_the_papers_temporary_planes():
    problem = ConvProblem(n=8, c=48, h=7, w=7, m=128, kh=5, kw=5, pad_h=2, pad_w=2)
    assert two_stage.configure(problem, H200).workspace_bytes == 25 * 8 * 128 * 49 * 4
    assert two_stage.configure(one_by_one(), H200).workspace_bytes == 0


def test_a_batch_whose_planes_exceed_a_gibibyte_goes_in_passes():
    problem = ConvProblem(n=256, c=64, h=224, w=224, m=64, kh=3, kw=3, pad_h=1, pad_w=1)
    config = two_stage.configure(problem, H200)
    assert (
        config.workspace_bytes
        <= 2**30
        < config.workspace_bytes // config.images_per_pass * (config.images_per_pass + 1)
    )


def test_filters_are_divided_where_the_planes_of_one_image_exceed_a_gibibyte():
    problem = ConvProblem(n=2, c=5, h=2048, w=2048, m=16, kh=3, kw=3, pad_h=1, pad_w=1)
    config, plane = two_stage.configure(problem, H200), 4 * 2048 * 2048
    assert (config.images_per_pass, config.filters_per_pass) == (1, 7)
    assert config.workspace_bytes == 9 * 7 * plane <= PLANES_BYTES
    launches = two_stage.launches(problem, config, CallOptions(relu=True))
    addresses = []
    for dots, sums in zip(launches[::2], launches[1::2], strict=True):
        input, weight, planes, images, _, _, _, filters, *_ = dots.arguments
        assert (planes, images) == (WORKSPACE, 1) and max(dots.blocks, sums.blocks) <= max(
            config.blocks, config.sum_blocks
        )
        _, output, size, _, of_sum, _, bias, relu = sums.arguments
        assert (size * 4, of_sum, relu) == (filters * plane, filters, 1)
        addresses.append((input.offset, weight.offset, bias.offset, output.offset, filters))
    assert addresses == [
        (image * 5 * plane, filter * 5 * 9 * 4, filter * 4, (image * 16 + filter) * plane, count)
        for image in (0, 1)
        for filter, count in ((0, 7), (7, 7), (14, 2))
    ]


def test_planes_and_grids_beyond_an_index_are_refused():
    with pytest.raises(UnsupportedProblem, match="beyond two_stage"):
        two_stage.configure(ConvProblem(n=1, c=1, h=65536, w=65536, m=1, kh=1, kw=1), H200)
    with pytest.raises(UnsupportedProblem, match="blocks, the limit is"):
        two_stage.configure(ConvProblem(n=1, c=1, h=40000, w=40000, m=4096, kh=1, kw=1), H200)


def launches(problem, relu=False):
    """The (kernel, arguments) of every launch."""
    config = two_stage.configure(problem, H200)
    return [(one.kernel, one.arguments) for one in two_stage.launches(problem, config, CallOptions(relu=relu))]


IN_THREE_PASSES = ConvProblem(n=21, c=64, h=224, w=224, m=64, kh=3, kw=3, pad_h=1, pad_w=1)


def test_passes_add_up_to_the_batch():
    """The addresses advance by whole images from pass to pass, and no image is left out."""
    calls = launches(IN_THREE_PASSES)
    first_stage = [arguments for kernel, arguments in calls if kernel == "scalar_prods"]
    images = [arguments[3] for arguments in first_stage]
    starts = [INPUT + 4 * 64 * 224 * 224 * first for first in (0, images[0], images[0] + images[1])]
    assert sum(images) == 21 and len(images) == 3
    assert [arguments[0] for arguments in first_stage] == starts
    assert [kernel for kernel, _ in calls] == ["scalar_prods", "sum_planes"] * 3


@pytest.mark.parametrize("relu", [False, True])
def test_the_second_stage_of_each_pass_finishes_its_own_images(relu):
    """The address of the bias is the same in every pass, while those of the images advance."""
    calls = launches(IN_THREE_PASSES, relu)
    first = [arguments for kernel, arguments in calls if kernel == "scalar_prods"]
    second = [arguments for kernel, arguments in calls if kernel == "sum_planes"]
    assert [arguments[-2:] for arguments in first] == [(0, 0)] * 3
    starts = [0, first[0][3], first[0][3] + first[1][3]]
    for (planes, output, size, positions, filters, pixels, bias, flag), stage_one, start in zip(
        second, first, starts, strict=True
    ):
        assert (planes, bias, flag) == (WORKSPACE, BIAS, relu)
        assert output == OUTPUT + 4 * start * 64 * 224 * 224
        assert (positions, filters, pixels) == (9, 64, 224 * 224)
        assert size == stage_one[3] * filters * pixels


@pytest.mark.parametrize("relu", [False, True])
def test_the_only_stage_of_a_1x1_filter_finishes(relu):
    ((kernel, arguments),) = launches(one_by_one(n=2), relu)
    assert kernel == "scalar_prods"
    assert arguments[:4] == (INPUT, WEIGHT, OUTPUT, 2) and arguments[-2:] == (BIAS, relu)
