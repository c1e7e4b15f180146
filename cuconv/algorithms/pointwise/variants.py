"""The macros of fp16x3_pointwise."""

from __future__ import annotations

from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.pointwise.tiles import (
    epilogue_bytes,
    pitch,
    pixel_stage_bytes,
    producer_threads,
    weight_stage_bytes,
)
from cuconv.core.elementwise import Number
from cuconv.core.problem import FP32


def macros_of(
    filters: Number,
    channels: Number,
    consumers: Number,
    /,
    *,
    warpgroup_split_k: Number = 0,
    pixel_stages: Number = 2,
    weight_stages: Number = 2,
    weights_resident: Number = 0,
    grid_stride: Number = 1,
    tail_split_k: Number = 1,
    packs_weights: Number = 0,
    epilogue_filters: Number = 64,
    vector: Number = 1,
    shifted: Number = 0,
    plane: Number = 0,
    evict_first: Number = 0,
    products: int = PRODUCTS[FP32],
) -> dict[str, Number]:
    """The macros of a kernel variant, or arrays of many, which the head of fp16x3_pointwise.cu explains."""
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
        "PRODUCER_THREADS": producer_threads(consumers),
        "SHARED_BYTES": shared_bytes,
    }
