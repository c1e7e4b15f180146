"""Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: for 3x3 and 5x5 filters.

It is the minimal filtering algorithm F(4, 3) or F(4, 5) of A. Lavin and S. Gray, "Fast Algorithms for Convolutional
Neural Networks" (2015), but in one dimension and with other points. docs/fp16x3_winograd.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, hypot, inf
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.common.limits import (
    HOPPER_ARCH,
    MAX_INDEX,
    check_sizes,
    require_dense,
    require_fit,
    require_hopper,
)
from cuconv.algorithms.common.listed import (
    Forms,
    ListedVariants,
    fastest_listed,
    for_any_channels,
    listed,
    with_prepared,
)
from cuconv.algorithms.common.shares import blocks_per_tile
from cuconv.algorithms.common.weight_packing import WeightPacking
from cuconv.algorithms.winograd.cost_model import Costs, least_work, times_of
from cuconv.algorithms.winograd.tiles import (
    CHANNELS,
    FILTERS,
    MAX_CLUSTER,
    MAX_SHARERS,
    OUTPUTS,
    TILE_SHAPES,
    TileShape,
    cells_of,
    edges_of,
    even_pitches,
    pipeline_of,
    points_of,
    raw_floats_of,
    shared_bytes_of,
    stage_cells_of,
    static_bytes_of,
    strips_of,
    tiles_of,
)
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")

CONSUMERS = 256  # threads that multiply
FLAG_BYTES = 2 * 4  # a block's flags
MAX_ROWS = 5  # a filter's
COLUMNS = (3, 5)  # a filter's
MIN_PRODUCTS = 288  # per output, at least
MAX_INPUT_BYTES = 2**32


@dataclass(frozen=True, slots=True)
class WinogradConfig:
    """A launch configuration: the tile, the pipeline, and the grid."""

    cluster: int  # blocks that share their input
    cells: int  # per tile
    producers: int  # threads of a block
    pitch: int  # cells of a row of a strip
    input_stages: int
    weight_stages: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int

    @property
    def tile_shape(self) -> TileShape:
        """The cells of a tile and the producer threads."""
        return TileShape(self.cells, self.producers)

    @property
    def threads(self) -> int:
        """Threads of a block of the main kernel."""
        return CONSUMERS + self.producers

    def __str__(self) -> str:
        stages = f"{self.input_stages}+{self.weight_stages}"
        tile = f"{FILTERS}x{self.cells}x{CHANNELS} pitch={self.pitch} cluster={self.cluster}"
        return f"tile={tile} producers={self.producers} stages={stages} grid={self.blocks} shared={self.shared_bytes}"


class Fp16x3Winograd(ListedVariants[WinogradConfig, Costs]):
    """Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32."""

    source = SOURCE
    summary = (
        "Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: "
        "for large 3x3 and 5x5 layers."
    )
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants, also with prepared weights; none without Hopper's instructions."""
        return with_prepared(listed(self.source)) if arch == HOPPER_ARCH else []

    def forms(self, problem: ConvProblem, config: WinogradConfig, options: CallOptions) -> Forms:
        """The variant for the layer's channels, and the one for any number of them."""
        p, stages = problem, (config.input_stages, config.weight_stages)
        macros = _macros(p.kh, p.kw, config.pitch, p.c % 8 == 0, stages, config.cluster, config.tile_shape)
        return for_any_channels(macros | options.macros)

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[WinogradConfig]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        _check(problem, device)
        found = []
        for cluster in _clusters(problem, device):
            for shape in _tile_shapes(cluster, problem.kw):
                for pitch in _pitches(problem, device, shape):
                    found += _candidates_of(problem, device, cluster, shape, pitch)
        return require_fit(found, problem, device, self.name)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: WinogradConfig, costs: Costs) -> float:
        """The device time of both kernels in microseconds, by the cost model with the given constants."""
        pipeline = (problem.kh, problem.kw, config.cluster, config.tile_shape, config.pitch, config.input_stages)
        clusters, times = config.blocks // config.cluster, times_of(*pipeline, costs)
        chunks, tiles = ceil(problem.c / CHANNELS), tiles_of(problem, config.cluster, config.cells, config.pitch)
        block_chunks = ceil(tiles * chunks / clusters)
        # Larger shares come first. Where these are whole tiles, the smaller ones share tiles but end earlier anyway.
        sharers = blocks_per_tile(tiles, chunks, clusters) if block_chunks % chunks else 1
        work_us = times.block_us(block_chunks, ceil(tiles / clusters), sharers)
        memory_us = (costs.memory * problem.min_bytes + costs.edge * edges_of(problem, config.pitch)) / 2**20
        return costs.block + _packing(config.cluster).predicted_us(problem, costs) + hypot(work_us, memory_us)

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """Launches, packing, and the norm of memory with the least work that a tile, or all of them, take a block."""
        costs, p = self.costs(problem.precision), problem
        if p.kw not in COLUMNS or not p.is_dense:
            return inf
        tile_us, cell_us = least_work(p.c, p.m, p.kh, p.kw, device, costs)
        work_us = max(tile_us, cell_us * p.n * (p.h + p.pad_h) * ceil(p.out_w / OUTPUTS))
        packing_us = 0.0 if prepared else _packing(1).predicted_us(p, costs)
        return costs.block + packing_us + hypot(work_us, costs.memory * p.min_bytes / 2**20)

    def kernels(self, problem: ConvProblem, config: WinogradConfig, options: CallOptions) -> tuple[Launch, ...]:
        """Weight packing and the main kernel. Each may start while the one ahead of it in the stream still runs."""
        p, macros = problem, fastest_listed(self.source, self.forms(problem, config, options))
        tiles = tiles_of(p, config.cluster, config.cells, config.pitch)
        share_units = tiles * ceil(p.c / CHANNELS) // (config.blocks // config.cluster)
        sizes = (p.n, p.c, p.h, p.w, p.m, p.pad_h, p.pad_w, p.out_h, p.out_w)
        cut = (config.pitch, strips_of(p, config.pitch), share_units)
        arguments: tuple[Address | int, ...] = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, *sizes, *cut)
        arguments += (*options.activation_arguments, options.output_planes(p), *options.arguments)
        blocks, threads = config.blocks, config.threads
        return (
            _packing(config.cluster).launch(problem, self.source, macros, blocks, options.packed),
            Launch(self.source, macros, self.name, blocks, threads, arguments, config.shared_bytes, overlap=True),
        )

    def packing(self, problem: ConvProblem, config: WinogradConfig) -> WeightPacking:
        """How the kernel ahead of the main one transforms and packs the weights."""
        return _packing(config.cluster)

    def static_shared_bytes(self, macros: Macros) -> int:
        """The most static shared memory, in bytes, that the kernels of a variant may have."""
        shape = TileShape(macros["TILE_CELLS"], macros["PRODUCERS"])
        return static_bytes_of(shape, macros["STAGE_CELLS"], macros["RAW_FLOATS"])


@dataclass(frozen=True, slots=True)
class TransformedWeightPacking(WeightPacking):
    """Weight packing that transforms the weights first: a warp transforms a row of the filter to all points."""

    def taps(self, problem: ConvProblem) -> int:
        """The numbers that are packed for each filter and channel: one for each point and row of the filter."""
        return points_of(problem.kw) * problem.kh

    def group_warps(self, problem: ConvProblem) -> int:
        """The warps of a block that share eight channels: one for each row of the filter."""
        return problem.kh


@cache
def _packing(cluster: int) -> TransformedWeightPacking:
    """Weight packing for clusters of a number of blocks, whose filters have common channel scales."""
    return TransformedWeightPacking(FILTERS * cluster, CHANNELS, PRODUCTS[FP32])


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a problem or a GPU that the kernel is not for."""
    p = problem
    require_hopper(problem, device)
    require_dense(problem, SOURCE.stem)
    if p.kw not in COLUMNS:
        raise UnsupportedProblem(f"{p.label}: {p.kw} columns in a filter, fp16x3_winograd computes 3 or 5")
    if p.kh == 1 and p.kw == 5:  # rare, and its variants spill registers
        raise UnsupportedProblem(f"{p.label}: one row in a filter of five columns, fp16x3_winograd computes more")
    if p.pad_h >= p.kh:
        raise UnsupportedProblem(
            f"{p.label}: padding of {p.pad_h} rows, for fp16x3_winograd it must be less than the filter's {p.kh}"
        )
    if p.more_h > 0:  # an image shares them with the next
        raise UnsupportedProblem(
            f"{p.label}: more padding below an image than above it, fp16x3_winograd computes as much or less"
        )
    if p.out_w < OUTPUTS:  # most of a cell would be padding, and errors would be relative to the largest weights
        raise UnsupportedProblem(f"{p.label}: rows of {p.out_w} outputs, fp16x3_winograd needs {OUTPUTS} side by side")
    if (
        p.c * p.filter_area < MIN_PRODUCTS
    ):  # where the input is sparse, an output may have one small product next to large ones
        raise UnsupportedProblem(
            f"{p.label}: outputs of {p.c * p.filter_area} products, fp16x3_winograd needs {MIN_PRODUCTS}"
        )
    sizes = [
        ("rows in a filter", p.kh, MAX_ROWS),
        ("input bytes", FLOAT_BYTES * p.n * p.c * p.h * p.w, MAX_INPUT_BYTES),
        ("output cells", 4 * cells_of(p, ceil(p.out_w / OUTPUTS)), MAX_INDEX),  # with room for strips and tiles
        ("weights", p.m * p.c * p.filter_area, MAX_INDEX),
    ]
    check_sizes(problem, SOURCE.stem, sizes)


def _tile_shapes(cluster: int, columns: int) -> list[TileShape]:
    """The tile shapes for a cluster and a filter. A block that converts all of its input needs 256 producers."""
    return [shape for shape in TILE_SHAPES[columns] if cluster > 1 or shape.producers == 256]


def _clusters(problem: ConvProblem, device: DeviceSpec) -> list[int]:
    """The sizes of clusters to offer, in blocks: the one that pads filters least, and 1 where that one pads any."""
    tiles = ceil(problem.m / FILTERS)
    padding = {size: -tiles % size for size in range(2, MAX_CLUSTER + 1) if size <= tiles}
    best = min(padding, key=lambda size: padding[size], default=1)
    sizes = [best] if padding.get(best, 1) == 0 else sorted({1, best})
    return [size for size in sizes if device.clusters_at_a_time(size) > 0]


def _pitches(problem: ConvProblem, device: DeviceSpec, shape: TileShape) -> list[int]:
    """The pitches to offer, in cells: of those that share a kernel variant, the one with the fewest edges."""
    row = ceil(problem.out_w / OUTPUTS)
    found: dict[tuple[int, int], int] = {}
    for pitch in even_pitches(row):
        if pipeline_of(problem.kh, problem.kw, shape, pitch, device.shared_bytes_per_block) is not None:
            stage_cells = stage_cells_of(problem.kh, pitch, shape.cells)
            variant = stage_cells, raw_floats_of(points_of(problem.kw), stage_cells, pitch)
            best = found.get(variant)
            if best is None or edges_of(problem, pitch) < edges_of(problem, best):
                found[variant] = pitch
    return list(found.values())


def _candidates_of(
    problem: ConvProblem, device: DeviceSpec, cluster: int, shape: TileShape, pitch: int
) -> list[WinogradConfig]:
    """The configurations of a cluster, a tile shape and a pitch."""
    pipeline = pipeline_of(problem.kh, problem.kw, shape, pitch, device.shared_bytes_per_block)
    chunks, tiles = ceil(problem.c / CHANNELS), tiles_of(problem, cluster, shape.cells, pitch)
    if pipeline is None or tiles * chunks > MAX_INDEX:
        return []
    if cluster == 1 and pipeline.rounds > 1:  # a few registers of the producers would spill
        return []
    packed_bytes = _packing(cluster).workspace_bytes(problem)
    sums = points_of(problem.kw) * FILTERS * shape.cells + CONSUMERS  # with a number for each consumer thread
    block_bytes = sums * FLOAT_BYTES + FLAG_BYTES
    return [
        WinogradConfig(
            cluster,
            *shape,
            pitch,
            *pipeline.stages,
            blocks=clusters * cluster,
            shared_bytes=pipeline.shared_bytes,
            workspace_bytes=packed_bytes + clusters * cluster * block_bytes,
        )
        for clusters in _grids(tiles, chunks, int(device.clusters_at_a_time(cluster)))
    ]


def _grids(tiles: int, chunks: int, most: int) -> list[int]:
    """Numbers of clusters, of which `most` run at a time: that many (stream-K), or equally many tiles for each."""
    every = min(most, tiles * chunks)
    if tiles > most:
        return sorted({every, ceil(tiles / ceil(tiles / most))})
    sharers = min(every // tiles, MAX_SHARERS)
    return sorted({tiles * sharers, every if sharers < MAX_SHARERS else tiles * MAX_SHARERS // 2})


def _macros(
    kh: int,
    kw: int,
    pitch: int,
    whole_groups: bool,
    stages: tuple[int, int],
    cluster: int,
    shape: TileShape,
) -> Macros:
    stage_cells = stage_cells_of(kh, pitch, shape.cells)
    raw_floats = raw_floats_of(points_of(kw), stage_cells, pitch)
    return {
        "FILTERS": FILTERS,
        "CHANNELS": CHANNELS,
        "KH": kh,
        "KW": kw,
        "TILE_CELLS": shape.cells,
        "STAGE_CELLS": stage_cells,
        "RAW_FLOATS": raw_floats,
        "WHOLE_GROUPS": int(whole_groups),
        "IN_STAGES": stages[0],
        "WEIGHT_STAGES": stages[1],
        "PRODUCERS": shape.producers,
        "CLUSTER": cluster,
        "SHARED_BYTES": shared_bytes_of(kh, kw, stage_cells, raw_floats, stages),
    }
