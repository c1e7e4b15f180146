"""The macros of fp16x3_pointwise."""

from __future__ import annotations

from cuconv.algorithms.base import Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.pointwise.tiles import (
    PRODUCER_THREADS,
    epilogue_bytes,
    pitch,
    pixel_stage_bytes,
    weight_stage_bytes,
)
from cuconv.problem import FP32


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
        "PRODUCTS": products,
        "PITCH": pitch(plane),
        "PRODUCER_THREADS": PRODUCER_THREADS[consumers],
        "SHARED_BYTES": shared_bytes,
    }
