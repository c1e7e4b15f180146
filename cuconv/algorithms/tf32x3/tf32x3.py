"""Host-side helpers of the tf32x3 algorithms: limits on sizes, configurations with split-K over a cluster, cost terms.

"3xTF32" computes an FP32 product as three products of TF32 parts; docs/tf32x3.md explains it. In TF32 the same kernels
compute one product of the rounded operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cuconv.algorithms.common.implicit_gemm import depth_of, grid_text, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number
from cuconv.core.problem import ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

MAX_FILTER_AREA = 63  # the kernels keep a pixel's filter positions in a mask of 64 bits, and one bit stays 0
MAX_FILTER_ROWS = 31  # a filter of more positions has no more rows and columns: two masks of 32 bits
MAX_TILE = 256  # filters or pixels; kernels round a size up to whole tiles, which must not exceed MAX_INDEX


@dataclass(frozen=True, slots=True)
class GridCosts:
    """The cost model's constants of a launch besides the stages of its blocks, in microseconds; each says for what."""

    start: float = constant("a launch")
    block: float = constant("a block from start to end, without its stages")
    cluster: float = constant("added to a block in a cluster")
    write: float = constant("an SM's time to write 2**12 outputs")
    exchange: float = constant("an SM's time to exchange 2**12 sums within a cluster")
    memory: float = constant("2**20 bytes of operands through device memory")


class Tile(Protocol):
    """A block's tile of the output and its warps. Its str() is the tile's part of a configuration's str()."""

    @property
    def threads(self) -> int:
        """Threads of a block."""


TileType = TypeVar("TileType", bound=Tile)


@dataclass(frozen=True, slots=True)
class ClusterConfig(Generic[TileType]):
    """A launch configuration: a tile, the split_k blocks of a cluster that share it, and the grid.

    pointwise: whether the kernel variant is for 1x1 filters without padding, which needs no tap table.
    """

    tile: TileType
    split_k: int
    pointwise: bool
    blocks: int
    shared_bytes: int
    products: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    def __str__(self) -> str:
        return f"tile={self.tile} split={self.split_k} {grid_text(self)}"


def check_indices(problem: ConvProblem, max_image: int) -> None:
    """Raise UnsupportedProblem where a size does not fit the kernels' integers.

    max_image: the most elements of an image that the offsets of the kernel's tap table reach.
    """
    p = problem
    sizes = [
        ("output pixels in the batch", p.n * p.out_pixels, MAX_INDEX - MAX_TILE),
        ("filters", p.m, MAX_INDEX - MAX_TILE),
        ("weights in a filter", depth_of(p), MAX_INDEX - MAX_TILE),
        ("input elements in a plane", p.h * p.w, MAX_INDEX),
    ]
    if p.filter_area > MAX_FILTER_AREA:
        sizes += [("rows in a filter", p.kh, MAX_FILTER_ROWS), ("columns in a filter", p.kw, MAX_FILTER_ROWS)]
    if not is_pointwise(p):
        sizes.append(("input elements in an image", reach_of(p), max_image))
    check_sizes(problem, "the tf32x3 algorithms", sizes)


def reach_of(problem: ConvProblem) -> int:
    """The elements of an image that a tap table must reach: of a filter larger than its input more than there are."""
    p = problem
    last_row = (p.group_channels - 1) * p.h + (p.kh - 1) * p.dilation_h
    return max(p.c * p.h * p.w, last_row * p.w + (p.kw - 1) * p.dilation_w + 1)


def tiles_of(problem: ConvProblem, filters: Number, pixels: Number) -> Number:
    """The tiles of an output, each filters x pixels; no tile has filters of two groups."""
    of_filters = problem.groups * ceil_div(problem.group_filters, filters)
    return of_filters * ceil_div(problem.n * problem.out_pixels, pixels)


def launchable(many: ClusterConfig[Any], possible: Any, problem: ConvProblem, device: DeviceSpec) -> Any:
    """The mask of the possible configurations whose grid and shared memory the device allows.

    Raises UnsupportedProblem where there is none.
    """
    blocks, shared_bytes, limit = many.blocks, many.shared_bytes, device.shared_bytes_per_block
    allowed: Any = possible & (blocks <= MAX_INDEX) & (shared_bytes <= limit)
    if allowed.any():
        return allowed
    least_blocks, least_bytes = (np.min(np.compress(possible, sizes)) for sizes in (blocks, shared_bytes))
    if least_blocks > MAX_INDEX:
        raise UnsupportedProblem(f"{problem.label}: a grid of {least_blocks} blocks, the limit is {MAX_INDEX}")
    raise UnsupportedProblem(
        f"{problem.label}: {least_bytes} bytes of shared memory for its {depth_of(problem)} weights in a filter, "
        f"the limit of {device.name} is {limit}"
    )


def blocks_per_sm(config: ClusterConfig[Any], device: DeviceSpec) -> Number:
    """The blocks that the busiest SM computes in a launch, where clusters are spread evenly over the GPU."""
    return ceil_div(config.blocks // config.split_k, np.maximum(1, device.clusters_at_a_time(config.split_k)))


def memory_us(problem: ConvProblem, us_per_mib: float) -> float:
    """The time to move each operand through device memory once, in microseconds."""
    return us_per_mib * problem.min_bytes / 2**20
