"""Group normalisation in half precision without a GPU: limits and the launch, and kernels that do not spill."""

from math import ceil

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import kernel_set
from cuconv.algorithms.planes import nhwc_group_norm
from cuconv.algorithms.planes.group_norm import RESIDENT, GroupNorm
from cuconv.core.activation import NONE
from cuconv.core.launch import KernelVariant
from cuconv.device import A100, H200
from cuconv.runtime import compiler

# (images, groups): those of Stable Diffusion's U-Net and decoder, small ones, and groups of one and of all channels
NORMS = [
    ((2, 320, 64, 64), 32),
    ((2, 1280, 16, 16), 32),
    ((1, 2560, 8, 8), 32),
    ((1, 128, 512, 512), 32),
    ((3, 40, 5, 7), 4),
    ((70, 64, 9, 9), 64),
    ((1, 4096, 4, 4), 1),
    ((1, 8, 1, 1), 2),
    ((2, 72, 33, 31), 9),
]
each_norm = pytest.mark.parametrize(("shape", "groups"), NORMS, ids=str)


def norm(shape=(1, 512, 64, 64), groups=32, precision="fp16"):
    return GroupNorm(shape, groups, 1e-6, NONE, precision)


def sizes(shape, groups):
    """The launch of a call on an H200, and the sizes among its arguments."""
    launch = nhwc_group_norm.launch(norm(shape, groups), H200)
    names = ("channels", "group", "room", "pixels", "slice", "phases", "parts", "kept")
    return launch, dict(zip(names, launch.arguments[4:12], strict=True))


@each_norm
def test_sets_and_slices_cover_the_images_and_fit(shape, groups):
    launch, of = sizes(shape, groups)
    blocks, pixels = launch.macros["BLOCKS"], shape[2] * shape[3]
    assert (of["channels"], of["group"], of["pixels"]) == (shape[1], shape[1] // groups, pixels)
    assert of["room"] % 8 == of["room"] % of["group"] == 0
    assert launch.blocks == shape[0] * ceil(shape[1] / of["room"]) * blocks
    assert (of["slice"] - 1) * blocks < pixels <= of["slice"] * blocks
    rows = 4 * 2 * of["room"] * (of["phases"] + 1)  # as the kernel lays them out
    assert launch.shared_bytes == rows + 2 * of["room"] * of["slice"] * of["kept"] <= H200.shared_bytes_of(RESIDENT)


@each_norm
def test_threads_have_a_vector_and_rows_join_evenly(shape, groups):
    launch, of = sizes(shape, groups)
    vectors = of["room"] // 8
    assert of["phases"] >= 1 and of["phases"] * vectors <= launch.threads < (of["phases"] + of["parts"]) * vectors
    assert of["phases"] % of["parts"] == 0  # the kernel counts the pixels of a joined row by this


@each_norm
def test_pixels_are_read_in_whole_sectors(shape, groups):
    _, of = sizes(shape, groups)
    assert of["room"] >= min(16, shape[1])


def test_few_images_have_narrow_sets_and_large_clusters():
    found = [sizes((n, 128, 128, 128), 32) for n in (1, 64)]
    assert [of["room"] for _, of in found] == [16, 32]
    assert [launch.macros["BLOCKS"] for launch, _ in found] == [16, 16]  # of 64 images no slice fits in fewer blocks
    assert sizes((64, 128, 16, 16), 32)[0].macros["BLOCKS"] == 1


def test_clusters_are_not_so_large_that_few_are_left_for_a_second_wave():
    launch, of = sizes((2, 320, 64, 64), 32)  # 16 clusters, of which 14 run at a time if they have 16 blocks
    assert of["room"] == 40 and launch.macros["BLOCKS"] == 8


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((0, 64, 8, 8), 32), ((1, 60, 8, 8), 4), ((1, 64, 8, 8), 3), ((1, 5000, 2, 2), 1), ((1, 64, 2**16, 2**16), 1)],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(shape, groups):
    with pytest.raises(UnsupportedProblem) as refused:
        norm(shape, groups)
    assert "\n" not in str(refused.value)


def test_other_gpus_are_refused():
    with pytest.raises(UnsupportedProblem):
        nhwc_group_norm.launch(norm(), A100)


def test_kernels_are_of_the_closed_set_and_do_not_spill():
    assert kernel_set.holds("sm_90a", [nhwc_group_norm.launch(norm(precision=one), H200) for one in ("fp16", "bf16")])
    for macros in nhwc_group_norm.variants("sm_90a"):
        (report,) = compiler.resources(KernelVariant.of(nhwc_group_norm.SOURCE, "sm_90a", macros))
        assert report.spill_bytes == report.shared_bytes == 0
        assert report.registers * nhwc_group_norm.THREADS * RESIDENT <= 2**16
