"""Squeeze and excitation in half precision without a GPU: limits and the launch, and kernels that do not spill."""

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import kernel_set
from cuconv.algorithms.planes import nhwc_squeeze_excite
from cuconv.algorithms.planes.squeeze_excite import STATIC_BYTES, WARPS, Excitation
from cuconv.core.activation import named
from cuconv.core.launch import KernelVariant
from cuconv.device import A100, H200, DeviceSpec
from cuconv.runtime import compiler
from tests.cuconv.compilers import checks_registers

SHAPES = [
    *((1, 32, 112, 112), (1, 1152, 7, 7), (8, 96, 56, 56), (64, 480, 14, 14), (1, 8, 1, 1), (2, 24, 3, 5)),
    *((1, 144, 400, 400), (3, 2056, 2, 1)),
]


def excitation(shape=(1, 480, 14, 14), hidden=20, precision="fp16"):
    return Excitation(shape, hidden, named("silu"), named("sigmoid"), precision)


def sizes(shape, hidden):
    """The launch of a call on an H200, and the sizes among its arguments."""
    launch = nhwc_squeeze_excite.launch(excitation(shape, hidden), H200)
    names = ("channels", "pixels", "hidden", "shares", "room", "block_pixels", "phases", "parts", "kept")
    return launch, dict(zip(names, launch.arguments[4:13], strict=True))


@pytest.mark.parametrize("hidden", [1, 20, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_cover_the_images_and_fit(shape, hidden):
    launch, of = sizes(shape, hidden)
    blocks, pixels = launch.macros["BLOCKS"], shape[2] * shape[3]
    assert (of["channels"], of["pixels"], of["hidden"]) == (shape[1], pixels, hidden)
    assert launch.blocks == shape[0] * blocks and blocks % of["shares"] == 0
    assert of["room"] % 8 == 0 and of["room"] * of["shares"] >= shape[1]
    assert of["block_pixels"] * (blocks // of["shares"]) >= pixels
    assert of["phases"] >= of["parts"] >= 1 and of["phases"] * of["room"] // 8 <= launch.threads
    numbers = of["room"] * (2 * hidden + of["phases"] + 1) + hidden * (WARPS + 2)  # as the kernel lays them out
    assert launch.shared_bytes == 4 * numbers + 2 * of["room"] * of["block_pixels"] * of["kept"]
    assert launch.shared_bytes + STATIC_BYTES <= H200.shared_bytes_per_block


def test_blocks_share_pixels_where_there_are_few_channels():
    assert sizes((1, 32, 112, 112), 8)[1]["shares"] == 1
    assert sizes((1, 96, 112, 112), 4)[1]["shares"] == 2
    assert sizes((1, 1152, 7, 7), 48)[1]["shares"] == 16


def test_large_weights_are_shared_by_more_blocks():
    assert sizes((1, 64, 14, 14), 8)[1]["shares"] == 2
    assert sizes((1, 64, 14, 14), 1000)[1]["shares"] > 2


def test_many_images_have_smaller_clusters_that_hold_the_weights():
    for shape, hidden, blocks in (((1, 64, 14, 14), 8, 16), ((64, 64, 14, 14), 8, 8), ((64, 2048, 7, 7), 128, 16)):
        assert sizes(shape, hidden)[0].macros["BLOCKS"] == blocks


def test_gpus_with_small_clusters_get_no_larger_ones():
    small = DeviceSpec("half of an H200", (9, 0), 66)
    assert nhwc_squeeze_excite.launch(excitation(), small).macros["BLOCKS"] == 8 == small.max_cluster_blocks
    with pytest.raises(UnsupportedProblem):
        nhwc_squeeze_excite.launch(excitation((1, 2048, 7, 7), 128), small)


@pytest.mark.parametrize("shape", [(0, 8, 3, 3), (1, 12, 3, 3), (1, 8, 2**16, 2**16), (2**28, 8, 1, 1)], ids=str)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(shape):
    with pytest.raises(UnsupportedProblem) as refused:
        excitation(shape)
    assert "\n" not in str(refused.value)


def test_what_does_not_fit_a_gpu_is_refused():
    for device, hidden in ((A100, 20), (H200, 4096)):
        with pytest.raises(UnsupportedProblem):
            nhwc_squeeze_excite.launch(excitation(hidden=hidden), device)


@checks_registers
def test_kernels_are_of_the_closed_set_and_do_not_spill():
    launches = [nhwc_squeeze_excite.launch(excitation(precision=one), H200) for one in ("fp16", "bf16")]
    assert kernel_set.holds("sm_90a", launches)
    for macros in nhwc_squeeze_excite.variants("sm_90a"):
        (report,) = compiler.resources(KernelVariant.of(nhwc_squeeze_excite.SOURCE, "sm_90a", macros))
        assert report.spill_bytes == 0 and report.shared_bytes <= STATIC_BYTES
