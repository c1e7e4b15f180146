"""Tests of the tiles of direct: they cover the output, threads share what few tiles leave idle, and auto takes them."""

from math import ceil

import pytest

from cuconv import ConvProblem, plan
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.direct.direct import COLUMNS, size_of
from cuconv.device import H200
from tests.cuconv.algorithms.problems import each_device
from tests.cuconv.layers import problems_of

DIRECT = ALGORITHMS["direct"]
RGB = ConvProblem(1, 128, 1024, 1024, 3, 3, 3, 1, 1)
RGB_NINE = ConvProblem(1, 32, 1024, 1024, 3, 9, 9, 4, 4)
LATENT = ConvProblem(1, 64, 512, 512, 4, 3, 3, 1, 1)
SHUFFLE = ConvProblem(1, 64, 720, 1280, 12, 3, 3, 1, 1)
SOBEL = ConvProblem(1, 1, 2160, 3840, 2, 3, 3, 1, 1)
BLUR = ConvProblem(1, 1, 352, 352, 1, 33, 33, 16, 16)
BLUR_OF_COLOURS = ConvProblem(1, 3, 512, 512, 3, 21, 21, 10, 10, groups=3)
BLUR_OF_ROWS = ConvProblem(1, 3, 1080, 1920, 3, 1, 31, 0, 15, groups=3)
SMALL_PLANES = ConvProblem(32, 64, 16, 16, 1, 15, 15, 7, 7)
EEG = ConvProblem(64, 1, 22, 1125, 8, 1, 64, 0, 32)
EEG_WIDE = ConvProblem(16, 1, 22, 1125, 40, 1, 125, 0, 62)
FOR_DIRECT = [
    RGB, RGB_NINE, LATENT, SOBEL, BLUR, BLUR_OF_COLOURS, BLUR_OF_ROWS, SMALL_PLANES, EEG, EEG_WIDE,
]  # fmt: skip
OTHERS = [
    SHUFFLE,
    ConvProblem(1, 1, 1, 1, 1, 1, 1),
    ConvProblem(5, 17, 32, 31, 1, 7, 7, 3, 3),
    ConvProblem(2, 6, 19, 18, 8, 3, 3, 1, 1, stride_h=2, stride_w=3, groups=2),
    ConvProblem(1, 70, 2, 3, 9, 2, 3, 1, 0),
    ConvProblem(1, 9001, 3, 5, 9, 1, 1),
]
by_label = {"ids": lambda problem: problem.label}


@each_device
@pytest.mark.parametrize("problem", [*FOR_DIRECT, *OTHERS], **by_label)
def test_blocks_cover_the_output_and_threads_the_sums(device, problem):
    p = problem
    for config in DIRECT.candidates(p, device):
        rows, columns = config.threads_y * config.rows_of_thread, config.threads_x * COLUMNS
        tiles = ceil(p.out_h / rows) * ceil(p.out_w / columns) * ceil(p.group_filters / config.filters_of_thread)
        assert config.blocks == p.n * p.groups * tiles
        assert config.chunk % config.shares_c == 0, "a channel is added by the same share in every chunk"
        assert config.shares_c <= p.group_channels and config.shares_y <= p.kh
        assert config.shares_y == 1 or size_of(p) == 0, "the rows of a filter of known size are unrolled"
        assert (config.buffers == 1) == (config.chunk >= p.group_channels)
        assert config.shared_bytes <= device.shared_bytes_per_block


@pytest.mark.parametrize("problem", FOR_DIRECT, **by_label)
def test_auto_takes_it_for_few_filters_and_for_large_ones(problem):
    assert plan(problem, H200).algorithm == "direct"


@pytest.mark.parametrize("sweep", ["paper", "strided", "grouped", "unseen"])
def test_auto_takes_it_for_no_layer_of_the_networks_that_were_measured(sweep):
    assert not [p.label for p in problems_of(sweep) if plan(p, H200).algorithm == "direct"]


def test_few_tiles_are_shared_by_the_threads_of_a_block():
    config = DIRECT.configure(SMALL_PLANES, H200)
    assert config.blocks < H200.sm_count < config.blocks * config.shares_c
    assert DIRECT.configure(BLUR, H200).shares_y > 1, "one channel has its filter's rows alone to share"


@pytest.mark.parametrize(
    ("width", "options", "vector"),
    [
        (16, CallOptions(), 1),
        (15, CallOptions(), 0),
        (16, CallOptions(aligned=False), 0),
        (6, CallOptions(output_channels=3), 0),  # images of the slice start anywhere
    ],
)
def test_outputs_are_written_four_at_a_time_where_rows_and_alignment_allow(width, options, vector):
    problem = ConvProblem(2, 3, 9, width, 2, 3, 3, 1, 1)
    (launch,) = DIRECT.launches(problem, DIRECT.configure(problem, H200), options)
    assert launch.arguments[21] == vector


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [((3, 3), 1, 3), ((3, 3), 2, 0), ((3, 5), 1, 0), ((5, 5), 1, 5), ((1, 1), 1, 1)]
)
def test_small_square_filters_of_stride_1_have_kernels_of_their_own(kernel, stride, size):
    problem = ConvProblem(1, 8, 30, 30, 4, *kernel, stride_h=stride, stride_w=stride)
    (launch,) = DIRECT.launches(problem, DIRECT.configure(problem, H200))
    assert launch.macros["SIZE"] == size_of(problem) == size
