"""The tiles of fp16x3_pointwise: which pixels a consumer has, a launch configuration, and how much work that makes.

An output tile is `filters` x `pixels`; the input channels are its reduction, taken in chunks. A consumer is a warpgroup
that multiplies. Its pixels, at most 64, are a warpgroup tile. The consumers of a block have a warpgroup tile each, or
all have the same one and share its chunks (split-K across the warpgroups of a block).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil

import numpy as np

from cuconv.algorithms.common.implicit_gemm import grid_text
from cuconv.algorithms.common.weight_packing import operand_bytes
from cuconv.core.elementwise import Number
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div

WARP, WARPGROUP = 32, 128  # threads
WARPGROUP_PIXELS = 64  # a warpgroup's tile has the rows of a wgmma instruction
VECTOR = 4  # pixels of a 16-byte copy
MAX_PIXEL_STAGES = 6
STATIC_BYTES = 1536  # static shared memory that every configuration leaves room for
BARRIER_BYTES = 2 * 8  # two barriers a stage: full and empty
STATE_BYTES = 20  # a block's state, without its barriers
ALIGNMENT = 128  # static shared memory is padded to a multiple of it, where dynamic shared memory begins
PADDED_PITCH = 68  # floats of 64 pixels in shared memory, so that reads of fragments meet no bank conflict


class PixelLayout(IntEnum):
    """The pixels that a warpgroup tile has. Arrays hold its numbers."""

    PLAIN = 0
    """The next 64 pixels, counted through all images."""

    SHIFTED_8 = 1
    """Up to 64 pixels of one image. The output is cut at multiples of 8 floats: no two tiles share a sector of L2."""

    SHIFTED_4 = 2
    """The same, cut at multiples of 4 floats: fewer tiles, since less of each is computed twice."""

    WHOLE_IMAGES = 3
    """All pixels of one image."""


LAYOUT_TEXTS = ("", " shifted=8", " shifted=4", " images")


def grain_of(layout: Number) -> Number:
    """The multiple, in floats, at which the output of a shifted layout is cut; 0 in the other layouts."""
    return 8 * (layout == PixelLayout.SHIFTED_8) + 4 * (layout == PixelLayout.SHIFTED_4)


@dataclass(frozen=True, slots=True)
class Fp16x3PointwiseConfig:
    """The tile of a block, its pipeline and its grid.

    filters, channels: of a tile, and of a chunk.
    consumers: warpgroups that multiply. warpgroup_split_k: they share the chunks of the same pixels.
    pixel_stages, weight_stages: chunks in shared memory, of each consumer's pixels and of weights.
    weights_resident: all weights of a tile stay for the tiles that follow. packs_weights: the block packs them itself.
    tail_split_k: blocks that share each tile of the last wave, or 1.
    epilogue_filters: filters of a consumer in shared memory at once on the way to the output.
    products: tensor-core products for one FP32 product.
    """

    filters: int
    channels: int
    consumers: int
    warpgroup_split_k: bool
    pixel_stages: int
    weight_stages: int
    weights_resident: bool
    packs_weights: bool
    tail_split_k: int
    epilogue_filters: int
    layout: PixelLayout
    blocks: int
    shared_bytes: int
    workspace_bytes: int
    products: int

    def __post_init__(self) -> None:
        if isinstance(self.layout, int):
            object.__setattr__(self, "layout", PixelLayout(self.layout))

    @property
    def sharers(self) -> int:
        """The consumers that have the same pixels."""
        return 1 + (self.consumers - 1) * self.warpgroup_split_k

    @property
    def warpgroup_tiles(self) -> int:
        """The warpgroup tiles of a tile: one where the consumers share it, else one for each consumer."""
        return self.consumers - (self.consumers - 1) * self.warpgroup_split_k

    @property
    def pixels(self) -> int:
        """The pixels of a tile."""
        return WARPGROUP_PIXELS * self.warpgroup_tiles

    @property
    def threads(self) -> int:
        """The threads of a block: its consumers, and a warpgroup of producers."""
        return WARPGROUP * (self.consumers + 1)

    def __str__(self) -> str:
        weights = " own" if self.packs_weights else " resident" if self.weights_resident else ""
        stages = f"{self.pixel_stages}+{self.weight_stages}{weights}"
        tile = f"{self.filters}x{self.pixels}x{self.channels}{f'/{self.consumers}' if self.warpgroup_split_k else ''}"
        stages += f" split={self.tail_split_k}" if self.tail_split_k > 1 else ""
        layout = LAYOUT_TEXTS[self.layout]
        return f"tile={tile}{layout} stages={stages} staged={self.epilogue_filters} {grid_text(self)}"


def pitch(plane: Number) -> Number:
    """Floats in shared memory from a channel's pixels to the next channel's; outputs have the same pitch.

    plane: pixels of an image in the layout of whole images, which lie as in global memory; 0 in the other layouts.
    """
    return plane + PADDED_PITCH * (plane == 0)


def plane_of(problem: ConvProblem, layout: Number) -> Number:
    """The macro PLANE: pixels of an image in the layout of whole images, else 0."""
    return problem.out_pixels * (layout == PixelLayout.WHOLE_IMAGES)


def producer_threads(consumers: Number) -> Number:
    """The threads that copy the pixels of one consumer: its share, in whole warps, of the warpgroup of producers."""
    return WARP * (WARPGROUP // WARP // consumers)


def pixel_stage_bytes(channels: Number, consumers: Number, plane: Number) -> Number:
    """The shared memory that one pixel stage of every consumer takes, in bytes."""
    return consumers * channels * pitch(plane) * FLOAT_BYTES


def weight_stage_bytes(filters: Number, channels: Number, products: int) -> Number:
    """The shared memory that a chunk's packed weights take, with the scales of its filters and channels, in bytes."""
    return filters * channels * operand_bytes(products) + (filters + channels) * FLOAT_BYTES


def epilogue_bytes(epilogue_filters: Number, consumers: Number, plane: Number) -> Number:
    """The shared memory that outputs pass through on their way out, in bytes."""
    return consumers * epilogue_filters * pitch(plane) * FLOAT_BYTES


def static_shared_bytes(consumers: int, weight_stages: int) -> int:
    """The static shared memory of a block that configurations leave room for, in bytes; most of it is barriers."""
    barrier_bytes = BARRIER_BYTES * (weight_stages + consumers * MAX_PIXEL_STAGES)
    units = ceil((barrier_bytes + STATE_BYTES) / ALIGNMENT)
    return max(STATIC_BYTES, units * ALIGNMENT)


def iterations(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> Number:
    """The chunks of a tile that one consumer multiplies, one after the other."""
    return ceil_div(ceil_div(problem.c, config.channels), config.sharers)


def warpgroup_tile_count(problem: ConvProblem, layout: PixelLayout) -> int:
    """The warpgroup tiles that cover the pixels of all images."""
    if layout is PixelLayout.PLAIN:
        return ceil_div(problem.n * problem.out_pixels, WARPGROUP_PIXELS)
    if layout is PixelLayout.WHOLE_IMAGES:
        return problem.n
    overlap = grain_of(layout) - 1  # pixels that a tile may have to leave to the one before it
    return problem.n * ceil_div(problem.out_pixels - overlap, WARPGROUP_PIXELS - overlap)


def pixel_tile_count(problem: ConvProblem, warpgroup_tiles: Number, layout: Number) -> Number:
    """The tiles with the same filters, for a number of warpgroup tiles in each."""
    of_layouts = np.array([warpgroup_tile_count(problem, one) for one in PixelLayout])
    return ceil_div(of_layouts[layout], warpgroup_tiles)


def filter_tile_count(problem: ConvProblem, filters: Number) -> Number:
    """The tiles with the same pixels."""
    return ceil_div(problem.m, filters)


def has_grid_stride(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> Number:
    """Whether a block takes every `blocks`-th tile, so that all blocks work on neighbouring pixels at a time.

    Resident weights allow it only where all of these tiles have the same filters. Elsewhere a block has consecutive
    tiles, ordered by their filters.
    """
    return (config.weights_resident == 0) | (config.blocks % filter_tile_count(problem, config.filters) == 0)


def weight_loads(config: Fp16x3PointwiseConfig, pixel_tiles: Number, filter_tiles: Number) -> Number:
    """How often the busiest block loads the weights of a filter tile, where weights are resident.

    pixel_tiles, filter_tiles: the tiles with the same filters, and with the same pixels.
    """
    tiles = pixel_tiles * filter_tiles
    of_block = ceil_div(tiles, config.blocks)
    more, fewer = np.maximum(pixel_tiles, of_block), np.minimum(pixel_tiles, of_block)
    begins_with_filters = (tiles % config.blocks == 0) & (more % fewer == 0) | (tiles == pixel_tiles)
    loads = ceil_div(of_block, pixel_tiles) + (begins_with_filters == 0)
    return np.where(config.blocks % filter_tiles == 0, 1, loads)  # `has_grid_stride`
