"""Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: for large problems.

docs/fp16x3.md explains the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.implicit_gemm import PRODUCTS, arguments_of, grid_text
from cuconv.algorithms.common.limits import (
    HOPPER_ARCH,
    MAX_INDEX,
    check_sizes,
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
from cuconv.algorithms.common.pieces import axes
from cuconv.algorithms.common.shares import TileTimes, blocks_per_tile
from cuconv.algorithms.common.weight_packing import WeightPacking, WeightPackingCosts, operand_bytes
from cuconv.algorithms.fp16x3.flattened import (
    CHANNELS,
    MAX_SLOTS,
    SLOT,
    Cut,
    Flattened,
    cuts,
    flattened,
    has_single_taps,
    is_whole,
    may_be_cut,
)
from cuconv.core.costs import constant
from cuconv.core.launch import WORKSPACE, Launch
from cuconv.core.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem
from cuconv.device import SECTOR_FLOATS, DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")

# The kernel's own numbers. It asserts that the shared memory computed from them is what it uses.
THREADS = 512
CONSUMERS = 2  # warpgroups that multiply
ROW_FILTERS = 64  # rows of a tensor-core instruction
FILTERS_STEP, POSITIONS_STEP = 8, 128  # steps of the sizes of narrow tiles
MAX_FILTERS, MAX_POSITIONS, MAX_SUMS = 128, 512, 128 * 128  # a tile has no more; the registers hold no more sums
STAGING_BYTES = CONSUMERS * 4 * 16 * 40 * FLOAT_BYTES  # 4 warps, 16 filters, 32 positions and a pad
NARROW_STAGING_BYTES = CONSUMERS * 32 * 68 * FLOAT_BYTES  # 32 filters, 64 positions and a pad
FLAG_BYTES = CONSUMERS * 4  # a block's flags
MAX_SIDE_BY_SIDE = 32 * 256  # sums of a narrow tile in FP32 whose weights have their parts side by side
# Bounds of the static shared memory.
BARRIER_BYTES = 2048  # mbarriers, scales, maxima, and the geometry
SOURCE_BYTES = 2 * SLOT * 4  # where a slot's positions lie in the input
RESCALE_BYTES = CONSUMERS * 4 * FLOAT_BYTES  # four buffers of factors for a narrow tile's filter

MAX_INPUT_BYTES = 2**32
# By products: stages of input chunks and of weight rows. The first pair that fits shared memory is taken.
_STAGES = ((4, 6), (3, 6), (4, 5), (3, 5), (4, 4), (3, 4), (2, 5), (2, 4), (3, 3), (2, 3))
STAGES = {3: _STAGES, 1: ((6, 12), (6, 9), (4, 9), (4, 8), *_STAGES)}


@dataclass(frozen=True, slots=True)
class Costs(WeightPackingCosts):
    """The constants of the cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    chunk: float = constant("a block's time for a chunk of channels, whatever its size")
    piece: float = constant("added to a chunk of a piece of the filter")
    fetch: float = constant("the producers' time to load and decompose 2**11 elements")
    scatter: float = constant("the same, in addition, for each further sector of L2 that eight neighbours touch")
    multiply: float = constant("the consumers' time for 2**18 FP32 multiply-adds")
    narrow: float = constant("the same, in addition, for a chain of products of a narrow tile")
    write: float = constant("a block's time to write 2**14 outputs")
    write_narrow: float = constant("added to write 2**14 outputs of a narrow tile")
    publish: float = constant("a block's time to publish 2**14 partial sums")
    accumulate: float = constant("a block's time to add 2**14 partial sums of another block")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Tile:
    """The output tile of a block. In a narrow tile filters are the tensor cores' columns and positions their rows."""

    filters: int
    positions: int  # output pixels, and the padding between them
    narrow: bool = False


TILES = (Tile(64, 256), Tile(128, 128))  # the tiles that are not narrow


@dataclass(frozen=True, slots=True)
class Fp16x3Config:
    """A launch configuration: the tile, the cut, the pipeline, and the grid."""

    tile: Tile
    cut: Cut | None
    slots: int
    input_stages: int
    weight_stages: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int
    products: int

    @property
    def threads(self) -> int:
        """Threads of a block of the main kernel."""
        return THREADS

    def __str__(self) -> str:
        stages = f"{self.input_stages}+{self.weight_stages}"
        tile = f"{self.tile.filters}x{self.tile.positions}x{CHANNELS}"
        tile += " narrow" if self.tile.narrow else ""
        tile += " piece={}x{} strip={}".format(*self.cut) if self.cut else ""
        return f"tile={tile} stages={stages} {grid_text(self)}"


class Fp16x3(ListedVariants[Fp16x3Config, Costs]):
    """Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32."""

    source = SOURCE
    summary = "Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: for large problems."
    precisions = tuple(PRODUCTS)
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants, also with prepared weights; none without Hopper's instructions."""
        return with_prepared(listed(self.source)) if arch == HOPPER_ARCH else []

    def forms(self, problem: ConvProblem, config: Fp16x3Config, options: CallOptions) -> Forms:
        """The variant for the layer's channels, and the one for any number of them."""
        return for_any_channels(_macros(problem, config) | options.macros)

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Fp16x3Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        _check(problem, device)
        found = []
        for tile in (*TILES, *_narrow_tiles(problem.m)):
            if is_whole(problem):
                slots = flattened(problem, None).slots(tile.positions)
                for one in (slots, slots + 1):  # the closed set may have kernels for more slots alone
                    found += _candidates_of(problem, device, tile, None, one)
            for cut in cuts(problem, tile.positions):
                found += _candidates_of(problem, device, tile, cut, flattened(problem, cut).slots(tile.positions))
        return require_fit(found, problem, device, self.name)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Fp16x3Config, costs: Costs) -> float:
        """The device time of both kernels in microseconds, by the cost model with the given constants."""
        tile, flat = config.tile, flattened(problem, config.cut)
        chunks, tiles = flat.chunks, _tiles(problem, flat, tile)
        times = _times(tile, config.slots, flat.kh, flat.kw, config.products, costs)
        if config.cut:
            further = min(axes(problem)[1].step, SECTOR_FLOATS) - 1
            fetch_us = times.fetch * (1 + costs.scatter / costs.fetch * further)
            times = times._replace(chunk=times.chunk + costs.piece, fetch=fetch_us)
        block_chunks, block_tiles = ceil(tiles * chunks / config.blocks), ceil(tiles / config.blocks)
        work_us = times.block_us(block_chunks, block_tiles, blocks_per_tile(tiles, chunks, config.blocks))
        packing_us = self.packing(problem, config).predicted_us(problem, costs)
        us: float = costs.block + packing_us + work_us + costs.memory * problem.min_bytes / 2**20
        return us

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """Launches, packing, memory, and the least work that a tile, or all of them, take a block."""
        costs, p = self.costs(problem.precision), problem
        if p.groups > 1 or has_single_taps(p):
            return inf
        tile_us, position_us = _least_work(p.c, p.m, p.kh, p.kw, PRODUCTS[p.precision], device, costs)
        if may_be_cut(p):
            piece, work_us = (1, 1), position_us * p.n * p.out_pixels
        else:
            piece, work_us = None, max(tile_us, position_us * flattened(p, None).positions)
        packing = WeightPacking(0, CHANNELS, PRODUCTS[p.precision], piece=piece)
        packing_us = 0.0 if prepared else packing.predicted_us(p, costs)
        return costs.block + packing_us + work_us + costs.memory * p.min_bytes / 2**20

    def kernels(self, problem: ConvProblem, config: Fp16x3Config, options: CallOptions) -> tuple[Launch, ...]:
        """Weight packing and the main kernel. Each may start while the one ahead of it in the stream still runs."""
        blocks, macros = config.blocks, fastest_listed(self.source, self.forms(problem, config, options))
        first = arguments_of(problem, options.activation)
        sizes = (options.output_planes(problem), *_flattening(problem, config))
        arguments = (*first[:4], WORKSPACE, *first[4:], *sizes, *options.arguments)
        packing = self.packing(problem, config)
        return (
            packing.launch(problem, self.source, macros, blocks, options.packed),
            Launch(self.source, macros, self.name, blocks, THREADS, arguments, config.shared_bytes, overlap=True),
        )

    def packing(self, problem: ConvProblem, config: Fp16x3Config) -> WeightPacking:
        """How the kernel ahead of the main one packs the weights."""
        return _packing(config.tile, config.cut, config.products)

    def static_shared_bytes(self, macros: Macros) -> int:
        """The most static shared memory, in bytes, that the kernels of a variant may have."""
        tile = Tile(macros["FILTERS"], macros["TILE_POSITIONS"], bool(macros["NARROW"]))
        return _static_bytes(tile, macros["SLOTS"])


def _flattening(problem: ConvProblem, config: Fp16x3Config) -> tuple[int, ...]:
    """The main kernel's arguments that say how images are flattened."""
    p, cut, (rows, columns) = problem, config.cut, axes(problem)
    flat = flattened(problem, cut)
    tiles = _spatial_tiles(flat, config.tile)
    sizes = (tiles, flat.pitch, flat.rows, packed_divisor(flat.pitch), packed_divisor(flat.rows))
    steps = (p.stride_h, p.stride_w, p.dilation_h, p.dilation_w)
    if cut is None:
        return (*sizes, *[0] * 9, *steps, *[0] * 4)
    counts = (flat.strips, min(rows.phases, p.out_h), min(columns.phases, p.out_w))
    pieces = (rows.pieces(cut.kh) * columns.pieces(cut.kw), columns.pieces(cut.kw))
    phases = (rows.phases, columns.phases, rows.used, columns.used)
    return (*sizes, cut.columns, *counts, *map(packed_divisor, counts), *pieces, *steps, *phases)


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a problem or a GPU that the kernel is not for."""
    p = problem
    require_hopper(problem, device)
    if p.groups > 1:
        raise UnsupportedProblem(f"{p.label}: fp16x3 computes one group only")
    if has_single_taps(p):
        raise UnsupportedProblem(
            f"{p.label}: fp16x3 needs a filter larger than 1x1, and than stride / gcd(stride, dilation) on an axis"
        )
    sizes = [
        ("input bytes", FLOAT_BYTES * p.n * p.c * p.h * p.w, MAX_INPUT_BYTES),
        ("weights", p.m * p.c * p.filter_area, MAX_INDEX),
    ]
    check_sizes(problem, SOURCE.stem, sizes)


@lru_cache(maxsize=1024)
def _narrow_tiles(filters: int) -> list[Tile]:
    """Narrow tiles of equally many filters, where they pad less than multiples of 64 do.

    Each is offered with as many positions as the registers hold with what else they are for, and with half of them.
    A tile of MAX_SUMS leaves them too few: 32x512 was the fastest on 2 of 29 cases.
    """
    tiles = set()
    for most in (MAX_FILTERS, MAX_FILTERS // 2):
        count = ceil(filters / most)
        tile_filters = FILTERS_STEP * ceil(filters / count / FILTERS_STEP)
        if count * tile_filters >= ROW_FILTERS * ceil(filters / ROW_FILTERS):
            continue
        positions = min(MAX_POSITIONS, MAX_SUMS // tile_filters // POSITIONS_STEP * POSITIONS_STEP)
        if tile_filters * positions == MAX_SUMS:
            positions //= 2
        half = max(POSITIONS_STEP, positions // 2 // POSITIONS_STEP * POSITIONS_STEP)
        tiles |= {Tile(tile_filters, positions, True), Tile(tile_filters, half, True)}
    return sorted(tiles, key=lambda tile: (tile.filters, tile.positions))


@lru_cache(maxsize=1024)
def _least_work(
    c: int, m: int, kh: int, kw: int, products: int, device: DeviceSpec, costs: Costs
) -> tuple[float, float]:
    """The least time of a block for its share of a tile, and of the busiest for each position of all images, in us.

    It leaves out the rows of a tile's halo.
    """
    chunks, tile_us, position_us = ceil(c / CHANNELS), [], []
    for tile in (*TILES, *_narrow_tiles(m)):
        times = _times(tile, ceil((tile.positions + 1) / SLOT), kh, kw, products, costs)
        tile_us.append(times.least_us(chunks, device.sm_count))
        tiles_of_position = ceil(m / tile.filters) / tile.positions / device.sm_count
        position_us.append(tiles_of_position * times.block_us(chunks, tiles=0, sharers=1))
    return min(tile_us), min(position_us)


def _times(tile: Tile, slots: int, kh: int, kw: int, products: int, costs: Costs) -> TileTimes:
    """The times of a tile's pipeline for a filter of kh x kw."""
    sums = tile.filters * tile.positions / 2**14
    return TileTimes(
        chunk=costs.chunk,
        fetch=costs.fetch * slots * SLOT * CHANNELS / 2**11,
        multiply=_multiply_us(tile, kh, kw, products, costs),
        write=(costs.write + costs.write_narrow * tile.narrow) * sums,
        publish=costs.publish * sums,
        accumulate=costs.accumulate * sums,
    )


def _multiply_us(tile: Tile, kh: int, kw: int, products: int, costs: Costs) -> float:
    """The consumers' time for a chunk of a tile.

    Below 64 filters the tensor cores wait for shared memory: 64 positions take it as long as 64 filters.
    """
    multiply_us = costs.multiply * tile.filters * CHANNELS * kh * kw * tile.positions / 2**18
    if not tile.narrow:
        return multiply_us
    chains = kh if products == PRODUCTS[FP32] else 1
    return multiply_us * max(1, 0.5 + 32 / tile.filters) + costs.narrow * chains


def _candidates_of(
    problem: ConvProblem, device: DeviceSpec, tile: Tile, cut: Cut | None, slots: int
) -> list[Fp16x3Config]:
    """The configurations of a tile, a cut and slots, if they fit shared memory and the kernel's integers."""
    products, flat = PRODUCTS[problem.precision], flattened(problem, cut)
    stages = _stages(tile, flat.kw, slots, products, device.shared_bytes_per_block)
    tiles = _tiles(problem, flat, tile)
    most = max(tiles * flat.chunks, 2 * flat.positions)  # with room for a tile and its halo
    if stages is None or slots > MAX_SLOTS or most > MAX_INDEX:
        return []
    shared_bytes = _shared_bytes(tile, flat.kw, slots, stages, products)
    packed_bytes = _packing(tile, cut, products).workspace_bytes(problem)
    return [
        Fp16x3Config(
            tile,
            cut,
            slots,
            *stages,
            blocks,
            shared_bytes,
            workspace_bytes=packed_bytes + blocks * (MAX_SUMS * FLOAT_BYTES + FLAG_BYTES),
            products=products,
        )
        for blocks in _grids(tiles, flat.chunks, device.sm_count)
    ]


@lru_cache(maxsize=2**14)
def _stages(tile: Tile, columns: int, slots: int, products: int, shared_bytes: int) -> tuple[int, int] | None:
    """The first of STAGES that fits shared memory; None where none does. shared_bytes: the most of a block."""
    limit = shared_bytes - _static_bytes(tile, slots)
    fitting = (pair for pair in STAGES[products] if _shared_bytes(tile, columns, slots, pair, products) <= limit)
    return next(fitting, None)


def _static_bytes(tile: Tile, slots: int) -> int:
    """A bound of the static shared memory, in bytes."""
    return BARRIER_BYTES + slots * SOURCE_BYTES + (RESCALE_BYTES * (tile.filters + 8) if tile.narrow else 0)


def _shared_bytes(tile: Tile, columns: int, slots: int, stages: tuple[int, int], products: int) -> int:
    """The dynamic shared memory in bytes: stages of input and of weight rows, and the outputs' staging."""
    input_stages, weight_stages = stages
    input_bytes = slots * SLOT * CHANNELS * operand_bytes(products)
    row_bytes = columns * CHANNELS * tile.filters * operand_bytes(products)
    staging_bytes = NARROW_STAGING_BYTES if tile.narrow else STAGING_BYTES
    return input_stages * input_bytes + weight_stages * row_bytes + staging_bytes


def _packing(tile: Tile, cut: Cut | None, products: int) -> WeightPacking:
    side_by_side = tile.narrow and products == PRODUCTS[FP32] and tile.filters * tile.positions <= MAX_SIDE_BY_SIDE
    return WeightPacking(tile.filters, CHANNELS, products, side_by_side, cut and (cut.kh, cut.kw))


def _grids(tiles: int, chunks: int, sms: int) -> list[int]:
    """Numbers of blocks: one for each SM (stream-K), or equally many for each tile (split-K)."""
    grids = {min(sms, tiles * chunks)}
    most = min(chunks, sms // tiles)
    grids |= {tiles * split_k for split_k in (1, 2, 4, most) if 0 < split_k <= most}
    return sorted(grids)


def _tiles(problem: ConvProblem, flat: Flattened, tile: Tile) -> int:
    return _spatial_tiles(flat, tile) * ceil(problem.m / tile.filters)


def _spatial_tiles(flat: Flattened, tile: Tile) -> int:
    return ceil(flat.positions / tile.positions)


def _macros(problem: ConvProblem, config: Fp16x3Config) -> Macros:
    flat, tile = flattened(problem, config.cut), config.tile
    stages = config.input_stages, config.weight_stages
    macros = {
        "NARROW": int(tile.narrow),
        "FILTERS": tile.filters,
        "TILE_POSITIONS": tile.positions,
        "CHANNELS": CHANNELS,
        "KH": flat.kh,
        "KW": flat.kw,
        "SLOTS": config.slots,
        "WHOLE_GROUPS": int(problem.c % 8 == 0),
        "IN_STAGES": config.input_stages,
        "WEIGHT_STAGES": config.weight_stages,
        "PRODUCTS": config.products,
        "SHARED_BYTES": _shared_bytes(tile, flat.kw, config.slots, stages, config.products),
    }
    if config.cut:
        macros["PIECES"] = 1
    elif max(problem.dilation_h, problem.dilation_w) > 1:
        macros["DILATED"] = 1
    return macros
