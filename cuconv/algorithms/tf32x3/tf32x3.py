"""What the tf32x3 algorithms share on the host, as their kernels share tf32x3.cuh: limits, clusters, cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot
from typing import Any

from cuconv.algorithms.common.implicit_gemm import depth_of, grid_text, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem, UnsupportedProblem

SPLITS = (1, 2, 4, 8)  # blocks of a cluster that share a tile; 8 is what every GPU with clusters grants
MAX_FILTER_AREA = 63  # the kernels' mask of filter positions has 64 bits, of which one stays empty
MAX_TILE = 256  # a size is rounded up to whole tiles


@dataclass(frozen=True, slots=True)
class GridCosts:
    """What a launch costs besides the stages of its blocks: microseconds, where the meaning does not say otherwise."""

    start: float = constant("a launch")
    block: float = constant("a block from start to end, without its stages")
    cluster: float = constant("the same, in addition, in a cluster")
    write: float = constant("an SM's time to write 2**12 outputs")
    exchange: float = constant("an SM's time to exchange 2**12 sums with the cluster")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class OverlapCosts(GridCosts):
    """The same for kernels of warpgroups that start while the one ahead of them ends, with their stages."""

    traffic: float = constant("fetching 2**11 elements for each SM at the same time, through the L2 cache")
    turn: float = constant("a warpgroup's wait in a stage")
    turn_filters: float = constant("the same, in addition, for each 64 filters")
    turn_warpgroup: float = constant("the same, in addition, for each warpgroup of the block")
    pointwise_turn: float = constant("the same, in addition, where the columns are the input as it lies")
    work: float = constant("an SM's time for a warpgroup's stage, if others hide the wait")
    work_filters: float = constant("the same, in addition, for each 64 filters")
    work_single: float = constant("the same, in addition, where pixels are not loaded in pairs")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A tile, the blocks of a cluster that share it, and the grid; pointwise leaves out what padding needs."""

    tile: Any  # the algorithm's own: has `threads`, and prints
    split: int
    pointwise: bool
    blocks: int
    shared_bytes: int
    products: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile.threads

    def __str__(self) -> str:
        return f"tile={self.tile} split={self.split} {grid_text(self)}"


@dataclass(frozen=True, slots=True)
class Block:
    """What the cost model wants to know of a configuration's blocks.

    resident: such blocks that an SM holds at a time. turns: stages that a warpgroup takes one after the other. wait_us,
    work_us: a turn, if nothing but its latency counts, and what it takes of an SM's throughput. end_us: what the end of
    a block takes of it. traffic_us: what a block on every SM adds to the time of all of them.
    """

    resident: int
    turns: int
    wait_us: float
    work_us: float
    end_us: float
    traffic_us: float


def check_indices(problem: ConvProblem, max_image: int) -> None:
    """Raises UnsupportedProblem where a size does not fit the kernels' integers.

    max_image: elements of one image that the offsets in the kernel's tap table can tell apart.
    """
    p = problem
    sizes = [
        ("filter positions", p.filter_area, MAX_FILTER_AREA),
        ("output pixels in the batch", p.n * p.out_pixels, MAX_INDEX - MAX_TILE),
        ("filters", p.m, MAX_INDEX - MAX_TILE),
        ("weights in a filter", depth_of(p), MAX_INDEX - MAX_TILE),
    ]
    if not is_pointwise(p):
        reach = ((p.c - 1) * p.h + p.kh - 1) * p.w + p.kw  # of the last tap: a filter may be larger than its input
        sizes.append(("input elements in an image", max(p.c * p.h * p.w, reach), max_image))
    check_sizes(problem, "the tf32x3 algorithms", sizes)


def those_that_fit(found: list, problem: ConvProblem, device: DeviceSpec) -> list:
    """The configurations that the device can launch; raises UnsupportedProblem where there is none."""
    blocks = min(config.blocks for config in found)
    if blocks > MAX_INDEX:
        raise UnsupportedProblem(f"{problem.label}: a grid of {blocks} blocks, the limit is {MAX_INDEX}")
    limit = device.shared_bytes_per_block
    fit = [config for config in found if config.blocks <= MAX_INDEX and config.shared_bytes <= limit]
    if not fit:
        least = min(config.shared_bytes for config in found)
        raise UnsupportedProblem(
            f"{problem.label}: {least} bytes of shared memory for its {depth_of(problem)} weights in a filter, "
            f"the limit of {device.name} is {limit}"
        )
    return fit


def blocks_of_an_sm(config: Any, device: DeviceSpec) -> int:
    """Blocks of the SM that has most of them, where clusters spread evenly."""
    clusters_at_a_time = max(1, device.clusters_at_a_time(config.split))
    return ceil(config.blocks / config.split / clusters_at_a_time)


def end_us(costs: GridCosts, outputs: int, split: int) -> float:
    """An SM's time to add up and write a block's share of a tile: of `split` parts of the sums, one is its own."""
    return (costs.write + costs.exchange * (split - 1)) * outputs / split / 2**12


def spread(config: ClusterConfig, device: DeviceSpec, registers: int) -> ClusterConfig:
    """The configuration, taking shared memory in vain where an SM could hold more of its blocks than an even share.

    Kernels overlap: what an SM has room for beyond its share comes while the one ahead ends, and crowds there. Room for
    two launches is better left alone. registers: of a thread.
    """
    share = blocks_of_an_sm(config, device)
    resident = device.resident_blocks(config.threads, registers, config.shared_bytes)
    if share < resident < 2 * share:
        return replace(config, shared_bytes=max(config.shared_bytes, device.shared_bytes_that_hold(share)))
    return config


def busiest_blocks(evenly: int, resident: int) -> int:
    """Blocks of the busiest SM in a stream of kernels that overlap.

    They spread evenly where an SM has room for this launch beside the one ahead. Otherwise some come as SMs empty one
    by one, and crowd on the first of them, up to what an SM holds.
    """
    return evenly if 2 * evenly <= resident else max(evenly, resident)


def overlapped_us(problem: ConvProblem, device: DeviceSpec, config: Any, costs: OverlapCosts, block: Block) -> float:
    """Estimated time of a launch that overlaps with its neighbours.

    Blocks come in rounds of `resident`. A turn takes its latency while an SM has few blocks, and its share of the
    throughput where it has many: their norm goes from one to the other. What all blocks fetch adds the time of the
    cache that they share. Memory hides behind all that, but not where both take long: their norm again.
    """
    of_an_sm = busiest_blocks(blocks_of_an_sm(config, device), block.resident)
    start_us = costs.block + (costs.cluster if config.split > 1 else 0.0)

    def round_us(blocks: float) -> float:
        return start_us + block.turns * hypot(block.wait_us, blocks * block.work_us) + blocks * block.end_us

    rounds, rest = divmod(of_an_sm, block.resident)
    compute_us = rounds * round_us(block.resident) + (round_us(rest) if rest else 0.0)
    compute_us += block.traffic_us * config.blocks / device.sm_count
    return costs.start + hypot(compute_us, memory_us(problem, costs))


def memory_us(problem: ConvProblem, costs: GridCosts) -> float:
    """Time of the operands through device memory, each once."""
    return costs.memory * problem.min_bytes / 2**20
