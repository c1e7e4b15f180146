"""1x1 convolution on Hopper's tensor cores at FP32 accuracy (3xTF32) or in TF32: many pixels, weights that stay."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common.implicit_gemm import (
    PARTS,
    PRODUCTS,
    arguments_of,
    grid_text,
    has_aligned_rows,
    is_pointwise,
    stages_of,
)
from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.tf32x3.tf32x3 import memory_us, those_that_fit
from cuconv.algorithms.tf32x3.tf32x3_wgmma import (
    PIXELS,
    STAGE_DEPTH,
    check_device_and_indices,
    has_pairs,
    layer_macros,
)
from cuconv.costs import constant
from cuconv.device import REGISTERS_PER_SM, DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of its cost model: microseconds, where the meaning does not say otherwise."""

    start: float = constant("a launch, and a block from start to end, without its weights and tiles")
    weights: float = constant("a warpgroup's time to split 2**12 weights")
    turn: float = constant("a warpgroup's wait in a stage")
    turn_filters: float = constant("the same, in addition, for each 64 filters")
    work: float = constant("an SM's time for a warpgroup's stage, if others hide the wait")
    work_filters: float = constant("the same, in addition, for each 64 filters")
    work_single: float = constant("the same, in addition, where pixels are not loaded in pairs")
    tile: float = constant("a warpgroup's wait at the end of a tile")
    write: float = constant("an SM's time to write 2**12 outputs")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_single: float = constant("2**20 bytes of output, in addition, where pixels are not written in pairs")


@dataclass(frozen=True, slots=True)
class Tile:
    """bf filters of a block, whose weights stay, and its warpgroups, each with tiles of 64 pixels."""

    bf: int
    warpgroups: int

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups

    @property
    def registers(self) -> int:
        """Of a thread, what the compiler may take."""
        return 128 if self.bf <= 32 else 168

    @property
    def resident(self) -> int:
        """Blocks that an SM's registers hold."""
        return REGISTERS_PER_SM // (self.threads * self.registers)

    def __str__(self) -> str:
        return f"{self.bf}x{PIXELS}x{STAGE_DEPTH} warpgroups={self.warpgroups}"


# Many small blocks where weights are few, else as many warpgroups around the same weights as registers allow.
TILES = tuple(Tile(bf, groups) for bf in (16, 32) for groups in (1, 2, 3, 4))
TILES += tuple(Tile(bf, groups) for bf in (48, 64) for groups in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Tf32x3StationaryConfig:
    """A block's filters and warpgroups, the blocks that an SM holds, and the grid."""

    tile: Tile
    resident: int
    blocks: int
    shared_bytes: int
    products: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile.threads

    def __str__(self) -> str:
        return f"tile={self.tile} resident={self.resident} {grid_text(self)}"


class Tf32x3Stationary(Algorithm[Tf32x3StationaryConfig, Costs]):
    """1x1 convolution on Hopper's tensor cores at FP32 accuracy (3xTF32) or in TF32: many pixels, weights that stay."""

    source = SOURCE
    summary = (
        "1x1 convolution on Hopper's tensor cores at FP32 accuracy (3xTF32) or in TF32: many pixels, weights that stay."
    )
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Each tile with each way to find pixels, and each other macro in each of its settings."""
        if arch != HOPPER_ARCH:
            return []
        single, paired = ConvProblem(2, 32, 9, 9, 8, 1, 1), ConvProblem(2, 32, 9, 8, 8, 1, 1)
        uneven, linear = ConvProblem(2, 33, 9, 9, 8, 1, 1), ConvProblem(1, 33, 9, 8, 8, 1, 1)
        sample = [_macros(problem, tile, True, 3) for problem in (single, paired, uneven) for tile in TILES]
        sample += [_macros(linear, tile, aligned, 3) for tile in (TILES[0], TILES[-1]) for aligned in (True, False)]
        sample += [_macros(problem, tile, True, 1) for problem in (single, paired) for tile in TILES]
        pixels = [_macros(problem, TILES[-1], True, 3) for problem in (uneven, paired)]
        return sample + [macros | {"EVICT_FIRST": 5} for macros in pixels]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3StationaryConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        check_device_and_indices(problem, device)
        if not is_pointwise(problem):
            raise UnsupportedProblem(f"{problem.label}: tf32x3_stationary is for filters of 1x1 without padding")
        products = PRODUCTS[problem.precision]
        found = []
        for tile in TILES:
            filter_tiles = ceil(problem.m / tile.bf)
            shared_bytes = FLOAT_BYTES * PARTS[products] * tile.bf * STAGE_DEPTH * stages_of(problem, STAGE_DEPTH)
            resident = device.resident_blocks(tile.threads, tile.registers, shared_bytes)
            # Blocks of other filters over the same pixels, in equal numbers, as many as run at a time or are needed.
            of_filters = min(device.sm_count * resident // filter_tiles, ceil(_tiles(problem) / tile.warpgroups))
            blocks = filter_tiles * max(1, of_filters)
            found.append(Tf32x3StationaryConfig(tile, resident, blocks, shared_bytes, products))
        return those_that_fit(found, problem, device)

    def estimate_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Tf32x3StationaryConfig, costs: Costs
    ) -> float:
        """Estimated device time in microseconds.

        A stage takes its latency while an SM has few warpgroups, and its share of the throughput where it has many: their
        norm goes from one to the other, and again where all that meets the time of memory.
        """
        tile, stages = config.tile, stages_of(problem, STAGE_DEPTH)
        single = not has_pairs(problem, aligned=True)
        filter_tiles = ceil(problem.m / tile.bf)
        of_an_sm = tile.warpgroups * ceil(config.blocks / device.sm_count)
        wait_us = costs.turn + costs.turn_filters * tile.bf / 64
        work_us = costs.work + costs.work_filters * tile.bf / 64 + costs.work_single * single
        tile_us = stages * hypot(wait_us, of_an_sm * work_us)
        tile_us += costs.tile + of_an_sm * costs.write * PIXELS * tile.bf / 2**12
        turns = ceil(_tiles(problem) / (config.blocks // filter_tiles * tile.warpgroups))
        start_us = costs.start + costs.weights * tile.bf * stages * STAGE_DEPTH / tile.warpgroups / 2**12
        written = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        return start_us + hypot(turns * tile_us, memory_us(problem, costs) + costs.memory_single * single * written)

    def launches(
        self, problem: ConvProblem, config: Tf32x3StationaryConfig, aligned: bool, relu: bool
    ) -> tuple[Launch, ...]:
        """The kernel; it may start while the one ahead of it in the stream ends, and waits by itself."""
        macros = _macros(problem, config.tile, aligned, config.products)
        grid = (config.blocks, config.threads)
        return (
            Launch(
                self.source, macros, self.name, *grid, arguments_of(problem, relu), config.shared_bytes, overlap=True
            ),
        )


def _tiles(problem: ConvProblem) -> int:
    """Of the same filters."""
    return ceil(problem.n * problem.out_pixels / PIXELS)


def _macros(problem: ConvProblem, tile: Tile, aligned: bool, products: int) -> Macros:
    pixels = layer_macros(problem, aligned)
    return {
        "BF": tile.bf,
        "WARPGROUPS": tile.warpgroups,
        "RESIDENT": tile.resident,
        "VECTOR": int(has_aligned_rows(problem, aligned)),
        "PRODUCTS": products,
        **{name: pixels[name] for name in ("LINEAR", "WHOLE", "PAIRED", "EVICT_FIRST")},
    }
