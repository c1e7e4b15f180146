"""The tiles of fp16x3_winograd: cells, halos and strips, and the memory that they take.

A cell is four adjacent outputs. An image is cut into strips, whose rows have `pitch` cells. A tile is a number of cells
in the order of a strip's rows, and a stage holds the transformed input of a tile and its halo.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from cuconv.core.problem import FLOAT_BYTES, ConvProblem

# The kernel's own numbers. It asserts that the shared memory computed from them is what it uses.
OUTPUTS = 4  # per cell
FILTERS = 64  # per block tile
CHANNELS = 16  # per chunk
JOB_CELLS = 16  # cells that a producer warp converts at a time
CELL_BYTES = CHANNELS * 4  # a cell's channels in a chunk at one point, in both FP16 parts
ROW_WEIGHT_BYTES = CHANNELS * FILTERS * 4  # the weights of one point and one row of the filter
STAGING_BYTES = 4 * 16 * 36 * FLOAT_BYTES  # a warpgroup's outputs: 4 warps, 16 filters, 32 outputs and a pad
STAGE_ALIGNMENT = 128  # where a chunk's stage begins
EXPONENT_BYTES = 16  # behind a chunk in its stage
# Bounds of the static shared memory.
BARRIER_BYTES = 768  # mbarriers, scales, maxima and a tile's bias
OUTPUTS_BYTES = 2 * 8  # where a cell's outputs lie, for each consumer warpgroup
THREAD_BYTES = 4  # a producer thread's for each of its copies and jobs
HALOS = (0, 4, 8, 14, 16, 24, 28, 32, 40, 48, 56, 64, 72, 80)  # cells; 14, 28 and 56 are those of many layers
RAW_UNIT = 64  # floats of a channel before the transform are 4 less than a multiple: whole rounds of copies would spill
ALIGNED_FLOATS = 8  # a sector of 32 bytes; strips whose rows are a multiple of it share no sector


class TileShape(NamedTuple):
    """The cells of a tile, and the producer threads. The more registers the sums take, the fewer producers fit."""

    cells: int
    producers: int


TILE_SHAPES = {  # by the columns of a filter
    3: (TileShape(80, 256), TileShape(80, 128), TileShape(88, 128), TileShape(96, 128)),
    5: (TileShape(64, 256), TileShape(72, 128), TileShape(80, 128)),
}

# Stages of input chunks, and of points of weights for each consumer warpgroup. The first pair that fits is taken.
STAGES = ((4, 2), (3, 3), (3, 2), (2, 3), (2, 2))
MAX_CLUSTER = 3  # blocks
MAX_SHARERS = 8  # clusters of a tile; more cost more to add up than they save
MIN_PITCH, MAX_PITCH = 4, 32  # cells of a row of a strip
CUTS = 7  # numbers of strips that an image may be cut into


def points_of(columns: int) -> int:
    """The points of the transform for a filter of a number of columns."""
    return OUTPUTS + columns - 1


def stage_cells_of(rows: int, pitch: int, cells: int) -> int:
    """The cells of a stage: a tile and its halo, the rows below it that a filter of `rows` rows reaches.

    The halo has one of a few sizes, so that layers of many widths share kernels.
    """
    halo = (rows - 1) * pitch
    return cells + next((size for size in HALOS if size >= halo), halo)


def rounds_of(stage_cells: int, producers: int) -> int:
    """The rounds in which producer warps convert eight channels of a stage."""
    return ceil(stage_cells / (producers // 32 * JOB_CELLS))


def raw_floats_of(points: int, stage_cells: int, pitch: int) -> int:
    """The floats of a channel before the transform: four more a row than the outputs of its cells."""
    last_row = (pitch - 1 + stage_cells - 1) // pitch
    needed = OUTPUTS * (stage_cells - 1) + 4 * last_row + points
    return RAW_UNIT * ceil((needed + 4) / RAW_UNIT) - 4


def static_bytes_of(shape: TileShape, stage_cells: int, raw_floats: int) -> int:
    """A bound of the static shared memory, in bytes."""
    copies, rounds = ceil(raw_floats / shape.producers), rounds_of(stage_cells, shape.producers)
    return BARRIER_BYTES + OUTPUTS_BYTES * shape.cells + THREAD_BYTES * shape.producers * (copies + rounds)


def shared_bytes_of(kh: int, kw: int, stage_cells: int, raw_floats: int, stages: tuple[int, int]) -> int:
    """The dynamic shared memory in bytes: stages of input, of both warpgroups' weights, and raw input."""
    input_stages, weight_stages = stages
    chunk_bytes = stage_cells * points_of(kw) * CELL_BYTES + EXPONENT_BYTES
    input_bytes = STAGE_ALIGNMENT * ceil(chunk_bytes / STAGE_ALIGNMENT)
    weight_bytes = max(kh * ROW_WEIGHT_BYTES, STAGING_BYTES)
    return input_stages * input_bytes + 2 * weight_stages * weight_bytes + 2 * 8 * raw_floats * FLOAT_BYTES


def strips_of(problem: ConvProblem, pitch: int) -> int:
    """The strips of an image whose rows have `pitch` cells."""
    return ceil(problem.out_w / OUTPUTS / pitch)


def edges_of(problem: ConvProblem, pitch: int) -> int:
    """The edges between strips in all rows of input and output. An edge within a sector of memory counts twice."""
    whole = pitch * OUTPUTS % ALIGNED_FLOATS == 0
    rows = problem.n * (problem.c * problem.h + problem.m * problem.out_h)
    return (strips_of(problem, pitch) - 1) * rows * (1 if whole else 2)


def cells_of(problem: ConvProblem, pitch: int) -> int:
    """The cells of all images, strip after strip, with the rows of padding between them."""
    return problem.n * strips_of(problem, pitch) * (problem.h + problem.pad_h) * pitch


def tiles_of(problem: ConvProblem, cluster: int, cells: int, pitch: int) -> int:
    """The tiles of all outputs, each with the filters of a whole cluster."""
    return ceil(cells_of(problem, pitch) / cells) * ceil(problem.m / (FILTERS * cluster))


@lru_cache(maxsize=1024)
def even_pitches(row: int) -> tuple[int, ...]:
    """The pitches that cut a row of a number of cells into strips and pad it by an eighth at most; the row itself."""
    found, first = [row], max(2, ceil(row / MAX_PITCH))
    for strips in range(first, first + CUTS):
        pitch = ceil(row / strips)
        if pitch >= min(row, MIN_PITCH) and 8 * (pitch * ceil(row / pitch) - row) <= row:
            found.append(pitch)
    return tuple(dict.fromkeys(found))


class Pipeline(NamedTuple):
    """The stages of a tile with its halo: counts, rounds of conversion, and shared memory of a block in bytes."""

    stages: tuple[int, int]
    rounds: int
    shared_bytes: int


@lru_cache(maxsize=2**14)
def pipeline_of(kh: int, kw: int, shape: TileShape, pitch: int, shared_bytes: int) -> Pipeline | None:
    """The first of STAGES that fits shared memory; None where none does. shared_bytes: the most of a block."""
    stage_cells = stage_cells_of(kh, pitch, shape.cells)
    raw_floats = raw_floats_of(points_of(kw), stage_cells, pitch)
    limit = shared_bytes - static_bytes_of(shape, stage_cells, raw_floats)
    for stages in STAGES:
        size = shared_bytes_of(kh, kw, stage_cells, raw_floats, stages)
        if size <= limit:
            return Pipeline(stages, rounds_of(stage_cells, shape.producers), size)
    return None
