"""Host side of weight packing, which the fp16x3 algorithms share: the kernel pack_weights and the memory it fills.

The kernel decomposes the weights into FP16 parts before the main kernel of the same call runs, or once for all calls
where the weights are prepared. The device side is weight_packing.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.common.implicit_gemm import PARTS
from cuconv.algorithms.common.pieces import axes
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number
from cuconv.core.launch import PACKED, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div

KERNEL = "pack_weights"
# The same numbers stand in weight_packing.cuh; a test compares them.
FILTERS = 32  # per block
GROUP_WARPS = 5  # the most warps of a block that share eight channels
PART_BYTES = 2  # a part of an operand is one FP16 number


@dataclass(frozen=True, slots=True)
class WeightPackingCosts:
    """The constants of the kernel's cost model, without its launch."""

    pack: float = constant("a block of the kernel that packs the weights, for 2**14 of them")
    pack_bytes: float = constant("2**20 bytes that the weight packing kernel reads or writes")


def operand_bytes(products: int) -> int:
    """The bytes of a weight or an input element in all its FP16 parts."""
    return PART_BYTES * PARTS[products]


@dataclass(frozen=True, slots=True)
class WeightPacking:
    """How weights are packed: in tiles of `filters` filters and chunks of `channels` channels.

    Equal fields mean an equal packing: a layer with prepared weights shares it among calls of several sizes.
    """

    filters: Number
    channels: Number
    products: int  # tensor-core products for one FP32 product
    side_by_side: bool = False  # the low parts of eight channels follow their high parts, not those of a whole row
    piece: tuple[int, int] | None = None  # rows and columns of the pieces that a filter is multiplied in, if it is

    def pieces(self, problem: ConvProblem) -> int:
        """The pieces of the filter."""
        if self.piece is None:
            return 1
        rows, columns = (axis.pieces(size) for axis, size in zip(axes(problem), self.piece, strict=True))
        return rows * columns

    def area(self, problem: ConvProblem) -> int:
        """The positions of a filter that are multiplied at once: those of the filter or of a piece."""
        return self.piece[0] * self.piece[1] if self.piece else problem.filter_area

    def taps(self, problem: ConvProblem) -> int:
        """The numbers that are packed for each filter and channel, in a piece."""
        return self.area(problem)

    def group_warps(self, problem: ConvProblem) -> int:
        """The warps of a block that share eight channels."""
        return min(self.area(problem), GROUP_WARPS)

    def tile_chunks(self, problem: ConvProblem) -> Number:
        """The filter tiles times the chunks of channels of all pieces. Each such pair has its own scales."""
        return ceil_div(problem.m, self.filters) * ceil_div(problem.c, self.channels) * self.pieces(problem)

    def blocks(self, problem: ConvProblem) -> int:
        """The blocks of the grid: a cluster for each pair of a tile and a chunk."""
        return self.tile_chunks(problem) * ceil(self.filters / FILTERS)

    def workspace_bytes(self, problem: ConvProblem) -> Number:
        """The bytes of the packed weights and of the scales of filters and channels."""
        weight_bytes = operand_bytes(self.products) * self.filters * self.channels * self.taps(problem)
        return self.tile_chunks(problem) * (weight_bytes + (self.filters + self.channels) * FLOAT_BYTES)

    def launch(self, problem: ConvProblem, source: Path, macros: dict[str, int], blocks: int, packed: bool) -> Launch:
        """The launch of the packing kernel.

        blocks: of the main kernel that publish partial sums; the packing kernel clears their flags. packed: whether it
        packs constant weights once, to memory of their own, and clears no flags.
        """
        threads = 32 * self.group_warps(problem) * (self.channels // 8)
        shared_bytes = FLOAT_BYTES * FILTERS * (self.channels * self.area(problem) | 1)
        to, cleared = (PACKED, 0) if packed else (WORKSPACE, blocks)
        arguments: tuple[Address | int, ...] = (WEIGHT, to, problem.m, problem.c, cleared)
        if self.piece:
            arguments += (problem.kh, problem.kw, *(axis.tap_phases for axis in axes(problem)))
        return Launch(source, macros, KERNEL, self.blocks(problem), threads, arguments, shared_bytes, overlap=True)

    def predicted_us(self, problem: ConvProblem, costs: WeightPackingCosts) -> Number:
        """The estimated time of the packing kernel in microseconds: one block's latency plus the time of all bytes."""
        block_weights = FILTERS * self.channels * self.area(problem)
        packed_bytes = operand_bytes(self.products) * self.taps(problem) * self.pieces(problem)
        channel_bytes = FLOAT_BYTES * problem.filter_area + packed_bytes
        moved_bytes = channel_bytes * problem.m * problem.c
        return costs.pack * block_weights / 2**14 + costs.pack_bytes * moved_bytes / 2**20
