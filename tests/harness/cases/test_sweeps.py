"""The sweeps of public definitions have the layers of these: networks are walked, and a layer reads what one before it
writes.
"""

from itertools import pairwise

import pytest

from harness.cases.catalogue import load_sweep

PUBLIC = ("vae", "super_resolution", "audio", "boards", "blur", "public")
BYTES = 80 * 2**30  # the memory of the smallest Hopper GPU


def problems_of(sweep, prefix=""):
    """The convolutions of a sweep for one image, by the names of their layers that begin with a prefix."""
    layers = {}
    for case in load_sweep(sweep, batches=[1]).cases:
        layers |= {name: case.problem for name in case.layer.names if name.startswith(prefix)}
    return layers


@pytest.mark.parametrize("sweep", PUBLIC)
def test_every_case_fits_into_the_memory_of_a_gpu_and_stands_once(sweep):
    problems = [case.problem for case in load_sweep(sweep).cases]
    assert len(set(problems)) == len(problems)
    assert all(problem.min_bytes < BYTES / 2 for problem in problems), "tensors, and as much for a library"


def decoder(pixels):
    """The layers of the decoder of a latent of pixels / 8: (plane, channels, filters, filter size)."""
    plane, before = pixels // 8, 512
    layers = {(plane, 4, 4, 1), (plane, 4, 512, 3), (plane, 512, 512, 3), (plane, 512, 512, 1)}
    for block, channels in enumerate((512, 512, 256, 128)):
        if block:
            plane *= 2
            layers.add((plane, before, before, 3))
        layers |= {(plane, before, channels, 3), (plane, channels, channels, 3)}
        layers |= {(plane, before, channels, 1)} if before != channels else set()
        before = channels
    return layers | {(plane, before, 3, 3)}


def test_the_vae_is_the_decoder_at_two_sizes():
    for pixels in (512, 1024):
        found = [(p.h, p.c, p.m, p.kh) for p in problems_of("vae", f"{pixels} ").values()]
        assert set(found) == decoder(pixels) and len(found) == 14
    assert all(p.h == p.w == p.out_h == p.out_w for p in problems_of("vae").values())


def test_layers_of_networks_that_enlarge_images_keep_the_plane():
    layers = problems_of("super_resolution")
    assert all((p.out_h, p.out_w) == (p.h, p.w) and 9 * p.w == 16 * p.h for p in layers.values())
    for last, factor in (("espcn last 720p by 4", 4), ("espcn last 1440p by 2", 2)):
        assert layers[last].m == factor**2, "a channel for each pixel of the output"
    for name in ("edsr", "edsr baseline", "srresnet"):
        first, last = (layers[f"{name} upsample {n}"] for n in (1, 2))
        assert first.m == 4 * last.c and (2 * first.h, 2 * first.w) == (last.h, last.w)
        assert (2 * last.h, last.m // 4) == (layers[f"{name} last"].h, layers[f"{name} last"].c)


def test_hifigan_has_nine_layers_in_each_of_four_levels():
    layers = problems_of("audio", "hifigan level")
    assert len(layers) == 4 * 3 * 3
    assert all((p.out_h, p.out_w, p.m) == (1, p.w, p.c) for p in layers.values())
    assert {(p.c, p.w // 565) for p in layers.values()} == {(256, 8), (128, 64), (64, 128), (32, 256)}
    spans = {(p.kw, p.dilation_w) for p in layers.values() if p.c == 32}
    assert spans == {(k, d) for k in (3, 7, 11) for d in (1, 3, 5)}


def test_encodec_reads_a_second_and_leaves_75_frames():
    layers = problems_of("audio", "encodec")
    assert layers["encodec first"].out_w == 24000 and layers["encodec last"].out_w == 75
    for block in range(1, 5):
        small, wide = layers[f"encodec block {block} 1x3"], layers[f"encodec block {block} 1x1"]
        shortcut, down = layers[f"encodec block {block} shortcut"], layers[f"encodec down {block}"]
        assert small.out_w == wide.w == shortcut.w == down.out_w * down.stride_w
        assert small.m == wide.c and wide.m == shortcut.m == down.c and down.m == 2 * down.c
        assert down.kw == 2 * down.stride_w
    strides = [layers[f"encodec down {block}"].stride_w for block in range(1, 5)]
    assert strides == [2, 4, 5, 8]


@pytest.mark.parametrize(("network", "order", "pools"), [
    ("eegnet", ("temporal", "spatial", "separable", "pointwise"), (1, 4, 1)),
    ("shallow", ("temporal", "spatial"), (1,)),
    ("deep4", ("temporal", "spatial", "block 2", "block 3", "block 4"), (1, 3, 3, 3)),
])  # fmt: skip
def test_each_layer_of_brain_waves_reads_what_the_one_before_it_and_pooling_leave(network, order, pools):
    layers = [problems_of("audio", network)[f"{network} {name}"] for name in order]
    assert {layers[0].h, layers[0].w} == {22, 1125} and layers[0].c == 1
    for (first, second), pool in zip(pairwise(layers), pools, strict=True):
        assert first.m == second.c
        assert sorted((first.out_h, first.out_w))[0] == sorted((second.h, second.w))[0]
        assert max(first.out_h, first.out_w) // pool == max(second.h, second.w)


def test_boards_are_those_of_the_games():
    layers = problems_of("boards")
    for name, problem in layers.items():
        assert problem.h == problem.w == problem.out_h == (8 if name.startswith("lc0") else 19)
    assert {p.c for name, p in layers.items() if "tower" in name} == {192, 256, 320, 384, 512}
    pooled = [(layers[name], layers[name.replace("regular", "global")]) for name in layers if "pool regular" in name]
    assert len(pooled) == 3 and all(one.m + other.m == one.c == other.c for one, other in pooled)


def test_blurs_keep_the_plane_and_each_channel_apart():
    layers = problems_of("blur")
    assert all((p.out_h, p.out_w, p.groups) == (p.h, p.w, p.c) for p in layers.values())
    assert {max(p.kh, p.kw) for p in layers.values()} == {3, 5, 11, 21, 31, 65}
    assert all(p.m == 2 * p.c for name, p in layers.items() if name.startswith("sobel"))


def test_the_boards_of_kernels_have_their_own_batches():
    batches = {name: case.batch for case in load_sweep("public").cases for name in case.layer.names}
    assert len(batches) == 17 and len(load_sweep("public").cases) == 16
    assert [batches[f"kernelbench {n}"] for n in (50, 55, 63, 84, 85)] == [256, 8, 16, 64, 32]
    assert [batches[f"gpumode {n}"] for n in range(1, 6)] == [4, 4, 2, 2, 1]
    outputs = {name: (p.out_h, p.out_w) for name, p in problems_of("public").items()}
    assert outputs["kernelbench 50"] == (55, 55) and outputs["kernelbench 56"] == (508, 250)
    assert outputs["gpumode 5"] == (225, 225)
