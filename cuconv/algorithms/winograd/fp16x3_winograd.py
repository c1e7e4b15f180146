"""Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: much work, 3x3 and 5x5.

Winograd's minimal filtering algorithms F(4, 3) and F(4, 5), as A. Lavin and S. Gray, "Fast Algorithms for Convolutional
Neural Networks" (2015), take them for convolution, but in one dimension and at points of our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.algorithms.common.weight_packing import Split, SplitCosts, some_fit
from cuconv.algorithms.fp16x3.fp16x3 import parts_of_tile
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")

# As in the .cu and .cuh files.
OUTPUTS = 4  # of a cell
FILTERS = 64  # of a tile
CHANNELS = 16  # of a chunk
CONSUMERS = 256  # threads that multiply
JOB_CELLS = 16  # that a warp transforms at once
CELL_BYTES = CHANNELS * 4  # of a chunk, transformed and split, for a point
POINT_BYTES = CHANNELS * FILTERS * 4  # of weights, for a row of the filter
STAGED_FLOATS = 4 * 16 * 36  # of a warpgroup's outputs, where its weights of a point lie before and after
STAGE_ALIGNMENT = 128  # of a chunk in shared memory, which its exponent follows
FLAG_BYTES = 2 * 4  # of a block
# More than barriers and a tile's bias take; and of a cell of each warpgroup, and of a thread that brings input.
STATIC_BYTES = 768
OUTPUTS_BYTES = 8
THREAD_BYTES = 4

MAX_ROWS = 5  # of a filter
COLUMNS = (3, 5)
MAX_INPUT_BYTES = 2**32
# Chunks of input and points of weights of each warpgroup in shared memory: the first pair that fits.
STAGES = ((4, 2), (3, 3), (3, 2), (2, 3), (2, 2))
# Cells of a tile, and threads that bring input: fewer where a tile's sums take the registers.
# By columns of a filter.
FORMS = {3: ((80, 256), (80, 128), (88, 128), (96, 128)), 5: ((72, 256), (64, 256), (72, 128), (80, 128))}
FIVE_ROWS = (72, 256)  # needs a filter of as many: the stages of smaller ones would take too many registers
MOST_CLUSTER = 3  # tiles of filters that share their input, each in a block of its own
MOST_PARTS = 8  # of a tile: to add up more takes longer than they save
MIN_PITCH, MAX_STRIPS, PITCHES = 4, 8, 2
ALIGNED_FLOATS = 8  # of a strip's row, if rows of its neighbours are not to share a piece of memory with it


@dataclass(frozen=True, slots=True)
class Costs(SplitCosts):
    """The constants of its cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    chunk: float = constant("a block's time for a chunk of channels, whatever its size")
    fetch: float = constant("to fetch, transform and split 2**12 elements of the transform, while others go on")
    multiply: float = constant("2**18 multiply-adds of transformed FP32, while others fetch")
    crowded: float = constant("the same, in addition, for tiles whose sums leave few registers")
    send: float = constant("the way of 2**12 elements to each other block of a cluster, shared by chunks under way")
    write: float = constant("a block's time to make outputs of 2**14 sums, and to write them")
    leave: float = constant("a block's time to leave 2**14 sums to another")
    collect: float = constant("a block's time to add 2**14 sums of another")
    memory: float = constant("2**20 bytes of operands through device memory")
    edge: float = constant("the same for 2**20 edges between strips in rows of input and output")


@dataclass(frozen=True, slots=True)
class WinogradConfig:
    """A block's tile, its pipeline, and the grids of both kernels. A cell is outputs side by side that share inputs."""

    cluster: int  # blocks that convert the same input in turn, with other filters each
    cells: int  # of a tile
    producers: int  # threads of a block
    pitch: int  # cells of a row, as they follow each other: of an image's, or of a strip of it
    input_stages: int
    weight_stages: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return CONSUMERS + self.producers

    def __str__(self) -> str:
        stages = f"{self.input_stages}+{self.weight_stages}"
        tile = f"{FILTERS}x{self.cells}x{CHANNELS} pitch={self.pitch} cluster={self.cluster}"
        return f"tile={tile} producers={self.producers} stages={stages} grid={self.blocks} shared={self.shared_bytes}"


class Fp16x3Winograd(Algorithm[WinogradConfig, Costs]):
    """Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: much work, 3x3 and 5x5."""

    source = SOURCE
    summary = "Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: much work, 3x3 and 5x5."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Each form with 3x3 and 5x5 filters, little and much halo, channels in whole groups and not; odd filters."""
        if arch != HOPPER_ARCH:
            return []
        found = []
        for cluster in range(1, MOST_CLUSTER + 1):
            much = 28 if cluster > 1 else 24  # what is transformed in one round
            for form in _forms(cluster, 3, 3):
                found += [
                    _macros(3, 3, 7, True, (4, 2), cluster, form),
                    _macros(3, 3, much, False, (2, 2), cluster, form),
                ]
        for cluster in (1, 2):
            found += [_macros(5, 5, 7, True, (2, 2), cluster, form) for form in _forms(cluster, 5, 5)]
        widest, first = FORMS[5][-1], FORMS[3][0]
        found += [_macros(5, 5, 4, False, (2, 2), 3, widest), _macros(3, 5, 7, False, (3, 2), 2, widest)]
        return [*found, _macros(2, 5, 7, True, (3, 2), 2, widest), _macros(5, 3, 4, False, (2, 2), 2, first)]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[WinogradConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        _check(problem, device)
        found = []
        for cluster in _clusters(problem, device):
            for form in _forms(cluster, problem.kh, problem.kw):
                for pitch in _pitches(problem, device, form):
                    found += _candidates_of(problem, device, cluster, form, pitch)
        return some_fit(found, problem, device, self.name)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: WinogradConfig, costs: Costs) -> float:
        """Estimated device time of both kernels in microseconds.

        Who fetches goes on while others multiply and write: the norm of both.
        """
        clusters, cells, others = config.blocks // config.cluster, config.cells, config.cluster - 1
        chunks, tiles = ceil(problem.c / CHANNELS), _tiles(problem, config)
        stage_cells = _stage_cells(problem.kh, config.pitch, cells)
        points = _points(problem.kw)
        products = points * problem.kh * CHANNELS * FILTERS * cells / 2**18
        converted = _rounds(stage_cells, config.producers) * config.producers / 2  # cells, with those of idle warps
        fetch_us = costs.fetch * converted * points * CHANNELS / 2**12 / config.cluster
        crowded = (cells, config.producers) == FORMS[problem.kw][-1]
        multiply_us = (costs.multiply + (costs.crowded if crowded else 0)) * products
        send_us = costs.send * stage_cells * points * CHANNELS / 2**12 * others / config.input_stages
        turns = ceil(tiles * chunks / clusters)
        # Larger shares come first; where these are whole tiles, the others share some, but have a chunk less.
        parts = parts_of_tile(tiles, chunks, clusters) if turns % chunks else 1
        sums = points * FILTERS * cells / 2**14
        exchange_us = ((costs.leave if parts > 1 else 0) + costs.collect * (parts - 1)) * sums
        write_us = costs.write * ceil(tiles / clusters) * sums
        work_us = (
            turns * (costs.chunk + send_us) + hypot(turns * fetch_us, turns * multiply_us + write_us) + exchange_us
        )
        memory_us = (costs.memory * problem.min_bytes + costs.edge * _edges(problem, config.pitch)) / 2**20
        split_us = _split(config.cluster).predicted_us(problem, costs)
        return costs.block + split_us + hypot(work_us, memory_us)

    def launches(self, problem: ConvProblem, config: WinogradConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """Both kernels; each may start while the one ahead of it in the stream ends, and waits by itself."""
        p, stages = problem, (config.input_stages, config.weight_stages)
        form = config.cells, config.producers
        macros = _macros(p.kh, p.kw, config.pitch, p.c % 8 == 0, stages, config.cluster, form)
        sizes = (p.n, p.c, p.h, p.w, p.m, p.pad_h, p.pad_w, p.out_h, p.out_w, config.pitch)
        share = _tiles(p, config) * ceil(p.c / CHANNELS) // (config.blocks // config.cluster)
        sizes += (_strips(p, config.pitch), share, int(relu))
        main = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, *sizes)
        return (
            _split(config.cluster).launch(problem, self.source, macros, config.blocks),
            Launch(
                self.source, macros, self.name, config.blocks, config.threads, main, config.shared_bytes, overlap=True
            ),
        )


@dataclass(frozen=True, slots=True)
class TransformedSplit(Split):
    """Weights are transformed before they are split: a warp has a row of the filter at all points."""

    def taps(self, problem: ConvProblem) -> int:
        return _points(problem.kw) * problem.kh

    def group_warps(self, problem: ConvProblem) -> int:
        return problem.kh


def _split(cluster: int) -> TransformedSplit:
    """A cluster's filters share the scales of their channels."""
    return TransformedSplit(FILTERS * cluster, CHANNELS, PRODUCTS[FP32])


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raises UnsupportedProblem for another architecture, and where the kernel or its integers do not suffice."""
    p = problem
    require_hopper(problem, device)
    if p.kw not in COLUMNS:
        raise UnsupportedProblem(f"{p.label}: {p.kw} columns in a filter, fp16x3_winograd computes 3 or 5")
    if p.kh == 1 and p.kw == 5:  # rare: some registers would be spilled
        raise UnsupportedProblem(f"{p.label}: one row in a filter of five columns, fp16x3_winograd computes more")
    if p.pad_h >= p.kh:
        raise UnsupportedProblem(
            f"{p.label}: padding of {p.pad_h} rows, for fp16x3_winograd it must be less than the filter's {p.kh}"
        )
    if p.out_w < OUTPUTS:  # most of a cell would be padding, whose errors are those of the largest weights
        raise UnsupportedProblem(f"{p.label}: rows of {p.out_w} outputs, fp16x3_winograd needs {OUTPUTS} side by side")
    sizes = [
        ("rows in a filter", p.kh, MAX_ROWS),
        ("input bytes", FLOAT_BYTES * p.n * p.c * p.h * p.w, MAX_INPUT_BYTES),
        ("output cells", 4 * _cells(p, ceil(p.out_w / OUTPUTS)), MAX_INDEX),  # with room for strips and tiles
        ("weights", p.m * p.c * p.filter_area, MAX_INDEX),
    ]
    check_sizes(problem, SOURCE.stem, sizes)


def _points(columns: int) -> int:
    """Products in place of a row of the filter for each of a cell's outputs."""
    return OUTPUTS + columns - 1


def _forms(cluster: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """Cells and producers of tiles; many producers where each block converts all of its input."""
    forms = [form for form in FORMS[columns] if cluster > 1 or form[1] == 256]
    return [form for form in forms if form != FIVE_ROWS or rows == MAX_ROWS]


def _clusters(problem: ConvProblem, device: DeviceSpec) -> list[int]:
    """Blocks with filters of their own: two, or three where these have fewer in vain; one where some are in vain."""
    tiles = ceil(problem.m / FILTERS)
    wasted = {size: -tiles % size for size in range(2, MOST_CLUSTER + 1) if size <= tiles}
    best = min(wasted, key=wasted.get, default=1)
    sizes = [best] if wasted.get(best, 1) == 0 else sorted({1, best})
    return [size for size in sizes if _clusters_at_a_time(device, size) > 0]


def _clusters_at_a_time(device: DeviceSpec, size: int) -> int:
    return device.clusters_at_a_time(size)


def _pitches(problem: ConvProblem, device: DeviceSpec, form: tuple[int, int]) -> list[int]:
    """Cells of a row of one or more strips that fit, an eighth at most in vain: with the least rounds of conversion."""
    row = ceil(problem.out_w / OUTPUTS)
    cells, producers = form
    found = {}
    for strips in range(1, MAX_STRIPS + 1):
        pitch = ceil(row / strips)
        if pitch < min(row, MIN_PITCH) or (strips > 1 and 8 * (pitch * ceil(row / pitch) - row) > row):
            continue
        if _stages(problem, device, form, pitch) is None:
            continue
        rounds = _rounds(_stage_cells(problem.kh, pitch, cells), producers)
        found[rounds] = min(found.get(rounds, pitch), pitch, key=lambda pitch: _edges(problem, pitch))
    return [found[rounds] for rounds in sorted(found)[:PITCHES]]


def _stages(
    problem: ConvProblem, device: DeviceSpec, form: tuple[int, int], pitch: int
) -> tuple[tuple[int, int], int] | None:
    """The most stages that fit into shared memory, and the bytes that a block asks for; None where none fit."""
    cells, producers = form
    stage_cells, points = _stage_cells(problem.kh, pitch, cells), _points(problem.kw)
    raw_floats = _raw_floats(points, stage_cells, pitch)
    copies, rounds = ceil(raw_floats / producers), _rounds(stage_cells, producers)
    static_bytes = STATIC_BYTES + 2 * OUTPUTS_BYTES * cells + THREAD_BYTES * producers * (copies + rounds)
    input_bytes = STAGE_ALIGNMENT * ceil((stage_cells * points * CELL_BYTES + 16) / STAGE_ALIGNMENT)
    weight_bytes = max(problem.kh * POINT_BYTES, STAGED_FLOATS * FLOAT_BYTES)

    def shared_bytes(stages: tuple[int, int]) -> int:
        inputs, weights = stages
        return inputs * input_bytes + 2 * weights * weight_bytes + 2 * 8 * raw_floats * FLOAT_BYTES

    fit = [pair for pair in STAGES if shared_bytes(pair) + static_bytes <= device.shared_bytes_per_block]
    return (fit[0], shared_bytes(fit[0])) if fit else None


def _candidates_of(
    problem: ConvProblem, device: DeviceSpec, cluster: int, form: tuple[int, int], pitch: int
) -> list[WinogradConfig]:
    """Those of a cluster, a form and a pitch."""
    cells, producers = form
    stages, shared_bytes = _stages(problem, device, form, pitch)
    split, chunks = _split(cluster), ceil(problem.c / CHANNELS)
    tiles = _tiles_of(problem, cluster, cells, pitch)
    rounds = _rounds(_stage_cells(problem.kh, pitch, cells), producers)
    spills = cluster == 1 and rounds > 1  # a few registers of those that bring input
    if spills or tiles * chunks > MAX_INDEX:
        return []
    block_bytes = _points(problem.kw) * FILTERS * cells * FLOAT_BYTES + FLAG_BYTES
    return [
        WinogradConfig(
            cluster,
            cells,
            producers,
            pitch,
            *stages,
            blocks=clusters * cluster,
            shared_bytes=shared_bytes,
            workspace_bytes=split.workspace_bytes(problem) + clusters * cluster * block_bytes,
        )
        for clusters in _grids(tiles, chunks, _clusters_at_a_time(device, cluster))
    ]


def _grids(tiles: int, chunks: int, most: int) -> list[int]:
    """Clusters that may share the work, of which `most` run at a time: that many, or as many for each tile."""
    everybody = min(most, tiles * chunks)
    if tiles > most:
        return sorted({everybody, ceil(tiles / ceil(tiles / most))})
    parts = min(everybody // tiles, MOST_PARTS)
    return sorted({tiles * parts, everybody if parts < MOST_PARTS else tiles * MOST_PARTS // 2})


def _stage_cells(rows: int, pitch: int, cells: int) -> int:
    """Of a tile with the rows below it that its filters reach."""
    return cells + (rows - 1) * pitch


def _rounds(stage_cells: int, producers: int) -> int:
    """In which warps transform a chunk's cells, 16 a warp."""
    return ceil(stage_cells / (producers // 32 * JOB_CELLS))


def _raw_floats(points: int, stage_cells: int, pitch: int) -> int:
    """Of a channel as it lies in shared memory before the transform: rows, with four more than their cells' outputs."""
    last_row = (pitch - 1 + stage_cells - 1) // pitch
    return 4 * ceil((OUTPUTS * (stage_cells - 1) + 4 * last_row + points) / 4)


def _strips(problem: ConvProblem, pitch: int) -> int:
    """Of an image."""
    return ceil(problem.out_w / OUTPUTS / pitch)


def _edges(problem: ConvProblem, pitch: int) -> int:
    """Between strips, in all rows of input and output; those within a piece of memory count twice."""
    whole = pitch * OUTPUTS % ALIGNED_FLOATS == 0
    rows = problem.n * (problem.c * problem.h + problem.m * problem.out_h)
    return (_strips(problem, pitch) - 1) * rows * (1 if whole else 2)


def _cells(problem: ConvProblem, pitch: int) -> int:
    """Of all images, strip after strip, with the rows of padding between them."""
    return problem.n * _strips(problem, pitch) * (problem.h + problem.pad_h) * pitch


def _tiles(problem: ConvProblem, config: WinogradConfig) -> int:
    return _tiles_of(problem, config.cluster, config.cells, config.pitch)


def _tiles_of(problem: ConvProblem, cluster: int, cells: int, pitch: int) -> int:
    """A cluster's tiles, of all its filters."""
    return ceil(_cells(problem, pitch) / cells) * ceil(problem.m / (FILTERS * cluster))


def _macros(
    kh: int,
    kw: int,
    pitch: int,
    whole_groups: bool,
    stages: tuple[int, int],
    cluster: int,
    form: tuple[int, int],
) -> Macros:
    cells, producers = form
    stage_cells = _stage_cells(kh, pitch, cells)
    return {
        "FILTERS": FILTERS,
        "CHANNELS": CHANNELS,
        "KH": kh,
        "KW": kw,
        "TILE_CELLS": cells,
        "STAGE_CELLS": stage_cells,
        "RAW_FLOATS": _raw_floats(_points(kw), stage_cells, pitch),
        "WHOLE_GROUPS": int(whole_groups),
        "IN_STAGES": stages[0],
        "WEIGHT_STAGES": stages[1],
        "PRODUCERS": producers,
        "CLUSTER": cluster,
    }
