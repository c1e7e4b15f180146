"""Group normalisation without a GPU: limits and the launch, whose kernels are of the closed set and do not spill."""

from math import ceil

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import kernel_set
from cuconv.algorithms.planes import group_norm
from cuconv.algorithms.planes.group_norm import GroupNorm
from cuconv.core.activation import NONE, named
from cuconv.core.launch import KernelVariant
from cuconv.device import A100, H200
from cuconv.runtime import compiler

SHAPES = [(1, 512, 64, 64), (1, 128, 1024, 1024), (4, 256, 28, 28), (32, 64, 7, 7), (3, 32, 5, 3), (512, 32, 2, 2)]


def norm(shape=(1, 512, 64, 64), groups=32, epsilon=1e-6, activation=NONE):
    return GroupNorm(shape, groups, epsilon, activation)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("groups", [1, 8])
def test_slices_cover_a_group_and_fit(shape, groups):
    one = norm(shape, groups)
    launch = group_norm.launch(one, H200)
    blocks, channels, pixels = launch.macros["BLOCKS"], shape[1], shape[2] * shape[3]
    *_, c, of_groups, of_pixels, slice, kept, _, _, _ = launch.arguments
    assert (c, of_groups, of_pixels) == (channels, groups, pixels)
    assert launch.blocks == shape[0] * groups * blocks
    assert slice % 4 == 0 and slice * blocks >= one.size > slice * (blocks - 1) - 4 * blocks
    assert launch.shared_bytes == (4 * slice if kept else 0) <= H200.shared_bytes_of(2)
    assert pixels % launch.macros["VECTOR"] == 0


def test_few_groups_have_larger_clusters():
    blocks = [group_norm.launch(norm((n, 512, 64, 64)), H200).macros["BLOCKS"] for n in (1, 4, 32)]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] == 16 > blocks[-1]


def test_small_groups_have_small_clusters():
    for shape in SHAPES:
        one = norm(shape, 1)
        blocks = group_norm.launch(one, H200).macros["BLOCKS"]
        assert blocks == 1 or one.size >= blocks * group_norm.LEAST_SLICE


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (0, 64, 8, 8)},
        {"shape": (1, 60, 8, 8)},
        {"shape": (1, 32, 3, 3)},
        {"groups": 0},
        {"shape": (1, 32, 2**16, 2**16)},
        {"shape": (2**27, 32, 2, 2), "groups": 32},
    ],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(options):
    with pytest.raises(UnsupportedProblem) as refused:
        norm(**options)
    assert "\n" not in str(refused.value)


def test_other_gpus_are_refused():
    with pytest.raises(UnsupportedProblem):
        group_norm.launch(norm(), A100)


def test_kernels_are_of_the_closed_set_and_do_not_spill():
    launch = group_norm.launch(norm(activation=named("silu")), H200)
    assert kernel_set.holds("sm_90a", [launch])
    for macros in group_norm.variants("sm_90a"):
        (report,) = compiler.resources(KernelVariant.of(group_norm.SOURCE, "sm_90a", macros))
        assert report.spill_bytes == 0 and report.shared_bytes <= group_norm.STATIC_BYTES
        assert report.registers * ceil(launch.threads / 32) * 32 * group_norm.RESIDENT <= 2**16
