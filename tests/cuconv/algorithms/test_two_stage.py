"""The launch geometry of the paper's algorithm: a pure function of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.activation import NONE, RELU, activation_of
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from cuconv.device import A100, H200
from tests.cuconv.layers import problems_of

two_stage = ALGORITHMS["two_stage"]


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
def test_grid_covers_every_dot_product_of_the_papers_cases(device):
    for problem in problems_of("paper"):
        config = two_stage.configure(problem, device)
        row_groups = ceil(problem.m / config.rows) * problem.filter_area
        covered = config.blocks // row_groups * config.threads * config.dots
        assert config.blocks % row_groups == 0 and covered >= config.images_per_pass * problem.out_pixels
        assert config.shared_bytes <= 48 * 1024 and 1 <= config.channels_per_pass <= problem.c
        assert all(launch.macros in two_stage.variants(device.arch) for launch in two_stage.launches(problem, config))


def test_filters_are_divided_where_the_planes_of_one_image_exceed_a_gibibyte():
    problem = ConvProblem(n=2, c=5, h=2048, w=2048, m=16, kh=3, kw=3, pad_h=1, pad_w=1)
    config, plane = two_stage.configure(problem, H200), 4 * 2048 * 2048
    assert config.workspace_bytes == 9 * 7 * plane <= 2**30
    launches = two_stage.launches(problem, config, CallOptions(activation=RELU))
    addresses = []
    for dots, sums in zip(launches[::2], launches[1::2], strict=True):
        input, weight, planes, images, _, _, _, filters, *_ = dots.arguments
        assert (planes, images) == (WORKSPACE, 1)
        _, output, size, _, of_sum, _, bias, *activation = sums.arguments
        assert (size * 4, of_sum, activation) == (filters * plane, filters, [RELU.kind, RELU.packed_numbers])
        addresses.append((input.offset, weight.offset, bias.offset, output.offset, filters))
    assert addresses == [
        (image * 5 * plane, filter * 5 * 9 * 4, filter * 4, (image * 16 + filter) * plane, count)
        for image in (0, 1)
        for filter, count in ((0, 7), (7, 7), (14, 2))
    ]


@pytest.mark.parametrize("activation", [NONE, RELU, activation_of(("leaky_relu", 0.1))], ids=str)
def test_passes_add_up_to_the_batch_and_each_finishes_its_own_images(activation):
    """Addresses advance by whole images from pass to pass, except those of the planes and of the bias."""
    problem = ConvProblem(n=21, c=64, h=224, w=224, m=64, kh=3, kw=3, pad_h=1, pad_w=1)
    config = two_stage.configure(problem, H200)
    launches = two_stage.launches(problem, config, CallOptions(activation=activation))
    assert [one.kernel for one in launches] == ["scalar_prods", "sum_planes"] * 3
    start, image_bytes = 0, 4 * 64 * 224 * 224
    for dots, sums in zip(launches[::2], launches[1::2], strict=True):
        input, _, planes, images, *_ = dots.arguments
        assert (input, planes, dots.arguments[-3:]) == (INPUT + start * image_bytes, WORKSPACE, (0, NONE.kind, 0))
        sizes = (images * 64 * 224 * 224, 9, 64, 224 * 224)
        finish = (BIAS, activation.kind, activation.packed_numbers)
        assert sums.arguments == (WORKSPACE, OUTPUT + start * image_bytes, *sizes, *finish)
        assert 9 * images * image_bytes <= config.workspace_bytes <= 2**30
        start += images
    assert start == 21


@pytest.mark.parametrize("activation", [NONE, RELU, activation_of("silu")], ids=str)
def test_the_only_stage_of_a_1x1_filter_finishes(activation):
    problem = ConvProblem(2, 64, 14, 14, 64, 1, 1)
    config = two_stage.configure(problem, H200)
    (launch,) = two_stage.launches(problem, config, CallOptions(activation=activation))
    assert launch.kernel == "scalar_prods" and config.workspace_bytes == 0
    assert launch.arguments[:4] == (INPUT, WEIGHT, OUTPUT, 2)
    assert launch.arguments[-3:] == (BIAS, activation.kind, activation.packed_numbers)
