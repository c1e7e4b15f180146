"""The terms of fp16x3_winograd's cost model that belong to a tile's pipeline, and the least work of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil

from cuconv.algorithms.common.shares import TileTimes
from cuconv.algorithms.common.weight_packing import WeightPackingCosts
from cuconv.algorithms.winograd.tiles import (
    CHANNELS,
    FILTERS,
    MAX_CLUSTER,
    MAX_SHARERS,
    STAGES,
    TILE_SHAPES,
    TileShape,
    points_of,
    rounds_of,
    stage_cells_of,
)
from cuconv.core.costs import constant
from cuconv.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Costs(WeightPackingCosts):
    """The constants of the cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    chunk: float = constant("a block's time for a chunk of channels, whatever its size")
    fetch: float = constant("the producers' time to load, transform and decompose 2**12 transformed elements")
    multiply: float = constant("the consumers' time for 2**18 multiply-adds of transformed FP32")
    register_pressure: float = constant("the same, in addition, for tiles whose sums leave few registers")
    send: float = constant("the latency of 2**12 elements to each other block of a cluster, shared by input stages")
    write: float = constant("a block's time to transform 2**14 sums back and write the outputs")
    publish: float = constant("a block's time to publish 2**14 partial sums")
    accumulate: float = constant("a block's time to add 2**14 partial sums of another block")
    memory: float = constant("2**20 bytes of operands through device memory")
    edge: float = constant("the same for 2**20 edges between strips in rows of input and output")


@lru_cache(maxsize=2**14)
def times_of(
    kh: int, kw: int, cluster: int, shape: TileShape, pitch: int, input_stages: int, costs: Costs
) -> TileTimes:
    """The times of a pipeline for a filter of kh x kw."""
    return _with_stage(kh, kw, cluster, shape, stage_cells_of(kh, pitch, shape.cells), input_stages, costs)


def _with_stage(
    kh: int, kw: int, cluster: int, shape: TileShape, stage_cells: int, input_stages: int, costs: Costs
) -> TileTimes:
    points = points_of(kw)
    products = points * kh * CHANNELS * FILTERS * shape.cells / 2**18
    converted = rounds_of(stage_cells, shape.producers) * shape.producers / 2  # cells, with those of idle warps
    few_registers = shape == TILE_SHAPES[kw][-1]
    sums = points * FILTERS * shape.cells / 2**14
    return TileTimes(
        chunk=costs.chunk + costs.send * stage_cells * points * CHANNELS / 2**12 * (cluster - 1) / input_stages,
        fetch=costs.fetch * converted * points * CHANNELS / 2**12 / cluster,
        multiply=(costs.multiply + (costs.register_pressure if few_registers else 0)) * products,
        write=costs.write * sums,
        publish=costs.publish * sums,
        accumulate=costs.accumulate * sums,
    )


@lru_cache(maxsize=1024)
def least_work(c: int, m: int, kh: int, kw: int, device: DeviceSpec, costs: Costs) -> tuple[float, float]:
    """The least time of a block for its share of a tile, and of the busiest for each cell of all images, in us.

    It leaves out the halo of a tile, and takes the most blocks that share one.
    """
    chunks, tile_us, cell_us = ceil(c / CHANNELS), [], []
    for cluster, shape in product(range(1, MAX_CLUSTER + 1), TILE_SHAPES[kw]):
        times = _with_stage(kh, kw, cluster, shape, shape.cells, STAGES[0][0], costs)
        tile_us.append(times.least_us(chunks, MAX_SHARERS))
        at_a_time = max(1, int(device.clusters_at_a_time(cluster)))
        tiles_of_cell = ceil(m / (FILTERS * cluster)) / shape.cells / at_a_time
        cell_us.append(tiles_of_cell * times.block_us(chunks, tiles=0, sharers=1))
    return min(tile_us), min(cell_us)
