"""Squeeze and excitation without a GPU: limits and the launch, whose kernels are of the closed set and do not spill."""

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import kernel_set
from cuconv.algorithms.planes import squeeze_excite
from cuconv.algorithms.planes.squeeze_excite import Excitation
from cuconv.core.activation import named
from cuconv.core.launch import KernelVariant
from cuconv.device import A100, H200
from cuconv.runtime import compiler

SHAPES = [(1, 32, 112, 112), (1, 1152, 7, 7), (8, 96, 56, 56), (64, 480, 14, 14), (1, 4, 1, 1), (2, 20, 3, 5)]


def excitation(shape=(1, 480, 14, 14), hidden=20):
    return Excitation(shape, hidden, named("silu"), named("sigmoid"))


@pytest.mark.parametrize("hidden", [1, 20, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_cover_the_channels_and_fit(shape, hidden):
    launch = squeeze_excite.launch(excitation(shape, hidden), H200)
    blocks = launch.macros["BLOCKS"]
    channels, pixels, of_hidden, block_channels, parts, kept = launch.arguments[4:10]
    assert (channels, pixels, of_hidden) == (shape[1], shape[2] * shape[3], hidden)
    assert launch.blocks == shape[0] * blocks and blocks * block_channels >= channels and block_channels % 4 == 0
    assert parts * block_channels >= squeeze_excite.WARPS or parts >= squeeze_excite.WARPS
    planes = 4 * block_channels * pixels * kept
    assert launch.shared_bytes + squeeze_excite.STATIC_BYTES <= H200.shared_bytes_per_block
    numbers = block_channels * (2 * hidden + parts + 1) + hidden * (squeeze_excite.WARPS + 2)  # as the kernel lays them
    assert launch.shared_bytes == planes + 4 * numbers


def test_many_images_have_smaller_clusters_that_hold_the_weights():
    for shape, hidden, blocks in (((1, 64, 14, 14), 8, 16), ((64, 64, 14, 14), 8, 8), ((64, 2048, 7, 7), 128, 16)):
        assert squeeze_excite.launch(excitation(shape, hidden), H200).macros["BLOCKS"] == blocks


@pytest.mark.parametrize("shape", [(0, 8, 3, 3), (1, 6, 3, 3), (1, 8, 2**16, 2**16), (2**28, 8, 1, 1)], ids=str)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(shape):
    with pytest.raises(UnsupportedProblem) as refused:
        excitation(shape)
    assert "\n" not in str(refused.value)


def test_what_does_not_fit_a_gpu_is_refused():
    for device, hidden in ((A100, 20), (H200, 4096)):
        with pytest.raises(UnsupportedProblem):
            squeeze_excite.launch(excitation(hidden=hidden), device)


def test_kernels_are_of_the_closed_set_and_do_not_spill():
    assert kernel_set.holds("sm_90a", [squeeze_excite.launch(excitation(), H200)])
    for macros in squeeze_excite.variants("sm_90a"):
        (report,) = compiler.resources(KernelVariant.of(squeeze_excite.SOURCE, "sm_90a", macros))
        assert report.spill_bytes == 0 and report.shared_bytes == squeeze_excite.STATIC_BYTES
