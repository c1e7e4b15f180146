"""Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: for the most work."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS, arguments_of, grid_text
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.algorithms.common.weight_packing import Split, SplitCosts, factor_bytes, some_fit
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

# As in the .cu and .cuh files.
THREADS = 512
CONSUMERS = 2  # warpgroups that multiply
ROW_FILTERS = 64  # of the tensor cores' rows, where filters are these
FILTERS_STEP, POSITIONS_STEP = 8, 128  # of tiles where filters are the columns
MAX_FILTERS, MAX_POSITIONS, MAX_SUMS = 128, 512, 128 * 128  # of a tile: what the registers hold
SLOT = 128  # positions
CHANNELS = 16  # of a chunk: the depth of the tensor cores' instruction
STAGING_BYTES = CONSUMERS * 4 * 16 * 40 * FLOAT_BYTES
NARROW_STAGING_BYTES = CONSUMERS * 32 * 68 * FLOAT_BYTES  # where filters are columns
STATIC_BYTES = 2048  # more than barriers and scales take
FACTOR_BYTES = CONSUMERS * 2 * FLOAT_BYTES  # of a filter, there
SOURCE_BYTES = 2 * 128 * 4  # of a slot
FLAG_BYTES = 2 * 4  # of a block

MAX_SLOTS = 9
MAX_FILTER = 7  # rows and columns
MAX_INPUT_BYTES = 2**32
# Chunks of input and rows of weights in shared memory, by products: the first pair that fits.
STAGES = {3: ((4, 6), (3, 6), (4, 5), (3, 5), (4, 4), (3, 4), (2, 5), (2, 4), (3, 3), (2, 3))}
STAGES[1] = ((6, 12), (6, 9), (4, 9), (4, 8), *STAGES[3])


@dataclass(frozen=True, slots=True)
class Costs(SplitCosts):
    """The constants of its cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    chunk: float = constant("a block's time for a chunk of channels, whatever its size")
    fetch: float = constant("to fetch and split 2**11 elements, while others multiply and write")
    multiply: float = constant("2**18 multiply-adds of FP32, while others fetch")
    narrow: float = constant("the same, in addition, for a chain of products with filters as the tensor cores' columns")
    write: float = constant("a block's time to write 2**14 outputs")
    leave: float = constant("a block's time to leave 2**14 sums to another")
    collect: float = constant("a block's time to add 2**14 sums of another")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block computes at a time; narrow: filters are the tensor cores' columns and positions their rows."""

    filters: int
    positions: int  # pixels, and the padding between them
    narrow: bool = False


TILES = (Tile(64, 256), Tile(128, 128))  # where filters are rows


@dataclass(frozen=True, slots=True)
class Fp16x3Config:
    """A block's tile, its pipeline, and the grids of both kernels."""

    tile: Tile
    slots: int
    input_stages: int
    weight_stages: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int
    products: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return THREADS

    def __str__(self) -> str:
        stages = f"{self.input_stages}+{self.weight_stages}"
        tile = f"{self.tile.filters}x{self.tile.positions}x{CHANNELS}"
        tile += " narrow" if self.tile.narrow else ""
        return f"tile={tile} stages={stages} {grid_text(self)}"


class Fp16x3(Algorithm[Fp16x3Config, Costs]):
    """Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: for the most work."""

    source = SOURCE
    summary = "Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: for the most work."
    precisions = PRECISIONS
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Tiles of both kinds for the filter sizes of the paper, with their halo; odd ones; large filters; much halo."""
        if arch != HOPPER_ARCH:
            return []
        wide, narrow = ((64, 256, 3), (128, 128, 2)), ((32, 512, 5), (48, 256, 3), (96, 128, 2))  # with their slots
        sample = [_macros(Tile(f, p), k, k, slots, True, 3, 4) for k in (3, 5) for f, p, slots in wide]
        sample += [_macros(Tile(f, p, True), k, k, slots, True, 3, 4) for k in (3, 5) for f, p, slots in narrow]
        odd = ((8, 512, 6), (40, 384, 6), (72, 128, 2), (120, 128, 2))
        sample += [_macros(Tile(f, p, True), 3, 3, slots, False, 2, 3) for f, p, slots in odd]
        sample += [_macros(tile, 7, 7, 3, True, 2, 3) for tile in TILES]
        sample.append(_macros(Tile(64, 256), 3, 3, 6, False, 2, 3))
        return sample + [macros | {"PRODUCTS": 1} for macros in sample]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Fp16x3Config]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        _check(problem, device)
        found = []
        for tile in (*TILES, *_narrow_tiles(problem.m)):
            found += _candidates_of(problem, device, tile)
        return some_fit(found, problem, device, self.name)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Fp16x3Config, costs: Costs) -> float:
        """Estimated device time of both kernels in microseconds.

        Who fetches goes on while others multiply and write: the norm of both.
        """
        tile = config.tile
        chunks, tiles = ceil(problem.c / CHANNELS), _tiles(problem, tile)
        weights = tile.filters * CHANNELS * problem.filter_area
        fetch_us = costs.fetch * config.slots * SLOT * CHANNELS / 2**11
        multiply_us = costs.multiply * weights * tile.positions / 2**18
        if tile.narrow:
            # Below 64 filters the tensor cores wait for shared memory: 64 positions take it as long as 64 filters.
            multiply_us *= max(1, 0.5 + 32 / tile.filters)
            chains = problem.kh if config.products == PRODUCTS[FP32] else 1
            multiply_us += costs.narrow * chains
        sums = tile.filters * tile.positions / 2**14
        turns, parts = ceil(tiles * chunks / config.blocks), parts_of_tile(tiles, chunks, config.blocks)
        write_us = costs.write * ceil(tiles / config.blocks) * sums
        exchange_us = ((costs.leave if parts > 1 else 0) + costs.collect * (parts - 1)) * sums
        return (
            costs.block
            + Split(tile.filters, CHANNELS, config.products).predicted_us(problem, costs)
            + turns * costs.chunk
            + hypot(turns * fetch_us, turns * multiply_us + write_us)
            + exchange_us
            + costs.memory * problem.min_bytes / 2**20
        )

    def launches(self, problem: ConvProblem, config: Fp16x3Config, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """Both kernels; each may start while the one ahead of it in the stream ends, and waits by itself."""
        whole_groups = problem.c % 8 == 0
        macros = _macros(
            config.tile,
            problem.kh,
            problem.kw,
            config.slots,
            whole_groups,
            config.input_stages,
            config.weight_stages,
            config.products,
        )
        operands_and_sizes = arguments_of(problem, relu)
        main = (*operands_and_sizes[:4], WORKSPACE, *operands_and_sizes[4:])
        return (
            Split(config.tile.filters, CHANNELS, config.products).launch(problem, self.source, macros, config.blocks),
            Launch(self.source, macros, self.name, config.blocks, THREADS, main, config.shared_bytes, overlap=True),
        )


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raises UnsupportedProblem for another architecture, and where the kernel or its integers do not suffice."""
    p = problem
    require_hopper(problem, device)
    if p.pad_h >= p.kh or p.pad_w >= p.kw:
        raise UnsupportedProblem(
            f"{p.label}: padding ({p.pad_h}, {p.pad_w}), for fp16x3 it must be less than the filter's {p.kh}x{p.kw}"
        )
    if p.filter_area == 1:
        raise UnsupportedProblem(f"{p.label}: fp16x3 is for larger filters than 1x1, fp16x3_pointwise for these")
    sizes = [
        ("rows in a filter", p.kh, MAX_FILTER),
        ("columns in a filter", p.kw, MAX_FILTER),
        ("input bytes", FLOAT_BYTES * p.n * p.c * p.h * p.w, MAX_INPUT_BYTES),
        ("positions of a filter", 2 * _positions(p), MAX_INDEX),  # with room for a tile and its halo
        ("weights", p.m * p.c * p.filter_area, MAX_INDEX),
    ]
    check_sizes(problem, SOURCE.stem, sizes)


def _narrow_tiles(filters: int) -> list[Tile]:
    """Tiles of equal numbers of filters, where less is padded than to multiples of 64, with many positions, or half."""
    tiles = set()
    for most in (MAX_FILTERS, MAX_FILTERS // 2):
        count = ceil(filters / most)
        share = FILTERS_STEP * ceil(filters / count / FILTERS_STEP)
        if count * share >= ROW_FILTERS * ceil(filters / ROW_FILTERS):
            continue
        positions = min(MAX_POSITIONS, MAX_SUMS // share // POSITIONS_STEP * POSITIONS_STEP)
        half = max(POSITIONS_STEP, positions // 2 // POSITIONS_STEP * POSITIONS_STEP)
        tiles |= {Tile(share, positions, True), Tile(share, half, True)}
    return sorted(tiles, key=lambda tile: (tile.filters, tile.positions))


def _candidates_of(problem: ConvProblem, device: DeviceSpec, tile: Tile) -> list[Fp16x3Config]:
    """Those of a tile: none where it does not fit into shared memory."""
    filters, products = tile.filters, PRODUCTS[problem.precision]
    halo = (problem.kh - 1) * _pitch(problem) + problem.kw - 1
    slots = ceil((tile.positions + halo) / SLOT)
    input_bytes = slots * SLOT * CHANNELS * factor_bytes(products)
    row_bytes = problem.kw * CHANNELS * filters * factor_bytes(products)
    limit = device.shared_bytes_per_block - STATIC_BYTES
    limit -= slots * SOURCE_BYTES + (FACTOR_BYTES * (filters + 8) if tile.narrow else 0)
    staging_bytes = NARROW_STAGING_BYTES if tile.narrow else STAGING_BYTES
    limit -= staging_bytes
    fit = [pair for pair in STAGES[products] if pair[0] * input_bytes + pair[1] * row_bytes <= limit]
    if not fit or slots > MAX_SLOTS:
        return []
    input_stages, weight_stages = fit[0]
    chunks = ceil(problem.c / CHANNELS)
    tiles = _tiles(problem, tile)
    if tiles * chunks > MAX_INDEX:
        return []
    shared_bytes = input_stages * input_bytes + weight_stages * row_bytes + staging_bytes
    weight_bytes = Split(filters, CHANNELS, products).workspace_bytes(problem)
    return [
        Fp16x3Config(
            tile,
            slots,
            input_stages,
            weight_stages,
            blocks,
            shared_bytes=shared_bytes,
            workspace_bytes=weight_bytes + blocks * (MAX_SUMS * FLOAT_BYTES + FLAG_BYTES),
            products=products,
        )
        for blocks in _grids(tiles, chunks, device.sm_count)
    ]


def _grids(tiles: int, chunks: int, sms: int) -> list[int]:
    """Blocks that may share the work: one an SM, or as many for each tile, so that none takes part in two."""
    grids = {min(sms, tiles * chunks)}
    most = min(chunks, sms // tiles)
    grids |= {tiles * parts for parts in (1, 2, 4, most) if 0 < parts <= most}
    return sorted(grids)


def _pitch(problem: ConvProblem) -> int:
    """Positions of a row: the padding on its right is that on the next one's left."""
    return problem.w + problem.pad_w


def _positions(problem: ConvProblem) -> int:
    """Of all images, one after the other, with the padding between rows and between images."""
    return problem.n * (problem.h + problem.pad_h) * _pitch(problem)


def _tiles(problem: ConvProblem, tile: Tile) -> int:
    return ceil(_positions(problem) / tile.positions) * ceil(problem.m / tile.filters)


def parts_of_tile(tiles: int, chunks: int, blocks: int) -> int:
    """The most blocks that share a tile: no more than it has chunks."""
    if tiles % blocks == 0:
        return 1
    share = tiles * chunks / blocks
    return min(chunks, ceil(chunks / share) + (0 if blocks % tiles == 0 else 1))


def _macros(
    tile: Tile,
    kh: int,
    kw: int,
    slots: int,
    whole_groups: bool,
    input_stages: int,
    weight_stages: int,
    products: int = 3,
) -> Macros:
    return {
        "NARROW": int(tile.narrow),
        "FILTERS": tile.filters,
        "TILE_POSITIONS": tile.positions,
        "CHANNELS": CHANNELS,
        "KH": kh,
        "KW": kw,
        "SLOTS": slots,
        "WHOLE_GROUPS": int(whole_groups),
        "IN_STAGES": input_stages,
        "WEIGHT_STAGES": weight_stages,
        "PRODUCTS": products,
    }
