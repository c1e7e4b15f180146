"""The macros of fp16x3_pointwise, and the sample of kernel variants that tests compile."""

from __future__ import annotations

from itertools import product

from cuconv.algorithms.base import Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.pointwise.registers import CHANNELS, CONSUMERS, holds_packed_weights, most_filters
from cuconv.algorithms.pointwise.tiles import (
    PRODUCER_THREADS,
    PixelLayout,
    epilogue_bytes,
    pitch,
    pixel_stage_bytes,
    weight_stage_bytes,
)
from cuconv.problem import FP32, TF32

Size = tuple[int, int, int]
"""The filters of a tile, the channels of a chunk and the consumers of a block."""

# Settings of the macros by what they stand for.
SINGLE_ELEMENTS = {"vector": 0}
WHOLE_IMAGES = {"plane": 49}
SHIFTED_8 = {"vector": 0, "shifted": 8}
SHIFTED_4 = {"vector": 0, "shifted": 4}
TAIL_SPLIT_K = {"tail_split_k": 2}
SINGLE_CHUNK = {"weights_resident": 1, "weight_stages": 1}
RELOADED = {"weights_resident": 1, "grid_stride": 0}  # resident weights that change on the way


RESIDUAL_EVERY = 5  # of the sample, also with a residual
PREPARED_EVERY = 4  # of those that do not pack their weights, also with prepared weights


def macros_of(
    filters: int,
    channels: int,
    consumers: int,
    /,
    *,
    warpgroup_split_k: int = 0,
    pixel_stages: int = 2,
    weight_stages: int = 2,
    weights_resident: int = 0,
    grid_stride: int = 1,
    tail_split_k: int = 1,
    packs_weights: int = 0,
    epilogue_filters: int = 64,
    vector: int = 1,
    shifted: int = 0,
    plane: int = 0,
    evict_first: int = 0,
    residual: int = 0,
    products: int = PRODUCTS[FP32],
) -> Macros:
    """The macros of a kernel variant, which the head of fp16x3_pointwise.cu explains."""
    shared_bytes = pixel_stages * pixel_stage_bytes(channels, consumers, plane)
    shared_bytes += weight_stages * weight_stage_bytes(filters, channels, products)
    shared_bytes += epilogue_bytes(epilogue_filters, consumers, plane)
    return {
        "FILTERS": filters,
        "CHANNELS": channels,
        "CONSUMERS": consumers,
        "WARPGROUP_SPLIT_K": warpgroup_split_k,
        "PIXEL_STAGES": pixel_stages,
        "WEIGHT_STAGES": weight_stages,
        "WEIGHTS_RESIDENT": weights_resident,
        "GRID_STRIDE": grid_stride,
        "TAIL_SPLIT_K": tail_split_k,
        "PACKS_WEIGHTS": packs_weights,
        "EPILOGUE_FILTERS": epilogue_filters,
        "VECTOR": vector,
        "SHIFTED": shifted,
        "PLANE": plane,
        "EVICT_FIRST": evict_first,
        "RESIDUAL": residual,
        "PRODUCTS": products,
        "PITCH": pitch(plane),
        "PRODUCER_THREADS": PRODUCER_THREADS[consumers],
        "SHARED_BYTES": shared_bytes,
    }


def sample() -> list[Macros]:
    """The largest tiles that registers hold, in every code path, and a few small ones."""
    found = [*_many_chunks(), *_single_chunk(), *_small(), *_one_product(), *_evict_first()]
    prepared = [macros | {"PREPARED": 1} for macros in found if not macros["PACKS_WEIGHTS"]]
    return [*found, *(macros | {"RESIDUAL": 1} for macros in found[::RESIDUAL_EVERY]), *prepared[::PREPARED_EVERY]]


def _largest(products: int, single_chunk: bool, layout: PixelLayout = PixelLayout.PLAIN) -> list[Size]:
    """The largest tile for each number of channels and consumers."""
    return [(most_filters(n, c, products, single_chunk, layout), c, n) for n, c in product(CONSUMERS, CHANNELS)]


def _most_packed(size: Size, **settings: int) -> list[Macros]:
    """The variant in which blocks pack as many chunks of weights as registers hold; none where these hold no chunk."""
    filters, channels, consumers = size
    chunks = [count for count in range(1, 40) if holds_packed_weights(filters, channels, count, consumers)]
    return [macros_of(*size, **RELOADED, weight_stages=count, packs_weights=4, **settings) for count in chunks[-1:]]


def _many_chunks() -> list[Macros]:
    """The largest tiles whose channels are several chunks."""
    fp32, found = PRODUCTS[FP32], []
    for size in _largest(fp32, False):
        filters, channels, consumers = size
        found += [macros_of(*size), macros_of(*size, epilogue_filters=32, **SINGLE_ELEMENTS)]
        # Beside three stages of three consumers' pixels there is no room for 64 filters.
        split = (min(filters, 48) if (channels, consumers) == (64, 3) else filters, channels, consumers)
        found += [macros_of(*split, **TAIL_SPLIT_K)]
        found += [macros_of(*split, epilogue_filters=32, **TAIL_SPLIT_K, **SINGLE_ELEMENTS)]
    for size in _largest(fp32, False, PixelLayout.WHOLE_IMAGES):
        shared = {"warpgroup_split_k": 1, "weight_stages": 2 * size[2]}
        found += [macros_of(*size, **WHOLE_IMAGES), macros_of(*size, **TAIL_SPLIT_K, **WHOLE_IMAGES)]
        found += [macros_of(*size, epilogue_filters=32, **shared, **WHOLE_IMAGES)]
        found += [macros_of(*size, **RELOADED, epilogue_filters=32, plane=35, vector=0)]
        found += _most_packed(size, **WHOLE_IMAGES)
    for size in _largest(fp32, False, PixelLayout.SHIFTED_8):
        shared = {"warpgroup_split_k": 1, "weight_stages": 2 * size[2]}
        found += [macros_of(*size, **SHIFTED_8), macros_of(*size, **RELOADED, epilogue_filters=32, **SHIFTED_4)]
        found += [macros_of(*size, **TAIL_SPLIT_K, **SHIFTED_8)]
        found += [macros_of(*size, **TAIL_SPLIT_K, epilogue_filters=32, **SHIFTED_4)]
        found += [macros_of(*size, **shared, **SHIFTED_4)]
        found += _most_packed(size, epilogue_filters=32, **SHIFTED_8)
    return found


def _single_chunk() -> list[Macros]:
    """The largest tiles whose channels are one chunk."""
    fp32, found = PRODUCTS[FP32], []
    packs = {"grid_stride": 0, "packs_weights": 1, "epilogue_filters": 32}
    for size in _largest(fp32, True):
        found += [macros_of(*size, **SINGLE_CHUNK), macros_of(*size, **SINGLE_CHUNK, **packs, **SINGLE_ELEMENTS)]
    layouts = (
        (PixelLayout.SHIFTED_8, SHIFTED_8),
        (PixelLayout.SHIFTED_4, SHIFTED_4),
        (PixelLayout.WHOLE_IMAGES, WHOLE_IMAGES),
    )
    for layout, settings in layouts:
        for size, grid_stride in product(_largest(fp32, True, layout), (0, 1)):
            packs = {"grid_stride": grid_stride, "packs_weights": 4, "epilogue_filters": 32}
            found.append(macros_of(*size, **SINGLE_CHUNK, **packs, **settings))
    return found


def _small() -> list[Macros]:
    """Tiles of few filters, and pipelines of more stages."""
    split_k = {"warpgroup_split_k": 1}
    return [
        macros_of(16, 64, 3, pixel_stages=4, weight_stages=3, **RELOADED, epilogue_filters=32, **SINGLE_ELEMENTS),
        macros_of(128, 64, 2, pixel_stages=3, weight_stages=3, **SHIFTED_8),
        macros_of(160, 48, 2, epilogue_filters=32),
        macros_of(64, 64, 2, **split_k, pixel_stages=3, weight_stages=8, **RELOADED, **SINGLE_ELEMENTS),
        macros_of(80, 48, 3, **split_k, weight_stages=4, **RELOADED, epilogue_filters=32, **SINGLE_ELEMENTS),
        macros_of(
            32, 48, 3, **split_k, pixel_stages=3, weight_stages=6, **RELOADED, packs_weights=1, epilogue_filters=32
        ),
    ]


def _one_product() -> list[Macros]:
    """Variants with the accuracy of TF32."""
    products = {"products": PRODUCTS[TF32]}
    found = []
    for size in _largest(PRODUCTS[TF32], False):
        shared = {"warpgroup_split_k": 1, "weight_stages": 2 * size[2]}
        found += [macros_of(*size, **products), macros_of(*size, **TAIL_SPLIT_K, **products)]
        found.append(macros_of(*size, **shared, **SINGLE_ELEMENTS, **products))
    for layout, settings in ((PixelLayout.SHIFTED_8, SHIFTED_4), (PixelLayout.WHOLE_IMAGES, WHOLE_IMAGES)):
        found += [macros_of(*size, **settings, **products) for size in _largest(PRODUCTS[TF32], False, layout)]
    packs = {**SINGLE_CHUNK, "packs_weights": 4, "epilogue_filters": 32}
    for layout, settings in ((PixelLayout.SHIFTED_8, SHIFTED_8), (PixelLayout.WHOLE_IMAGES, WHOLE_IMAGES)):
        found += [macros_of(*size, **packs, **settings, **products) for size in _largest(PRODUCTS[TF32], True, layout)]
    return found


def _evict_first() -> list[Macros]:
    """Each way to read pixels, with an evict-first share of the input."""
    layouts: tuple[dict[str, int], ...] = ({}, SINGLE_ELEMENTS, SHIFTED_8, SHIFTED_4, WHOLE_IMAGES)
    return [macros_of(128, 64, 2, **settings, evict_first=1) for settings in layouts]
