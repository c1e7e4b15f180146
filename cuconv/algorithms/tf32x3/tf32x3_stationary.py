"""1x1 convolution with wgmma at FP32 accuracy (3xTF32), for Hopper: many pixels, and weights that stay in an SM.

A block decomposes all weights of its filters once, into shared memory. Its warpgroups then go from tile to tile of
pixels, without a barrier between them. `tf32x3_stationary.cu` has the kernel, docs/tf32x3_stationary.md the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from pathlib import Path
from typing import ClassVar

from cuconv.algorithms.base import Algorithm, CallOptions, Macros
from cuconv.algorithms.common.implicit_gemm import (
    PARTS,
    PRODUCTS,
    arguments_of,
    grid_text,
    has_aligned_rows,
    is_pointwise,
    stages_of,
)
from cuconv.algorithms.common.limits import HOPPER_ARCH, require_dense
from cuconv.algorithms.tf32x3.tf32x3 import launchable, memory_us
from cuconv.algorithms.tf32x3.tf32x3_wgmma import (
    STAGE_DEPTH,
    WARPGROUP_PIXELS,
    check_device_and_indices,
    column_macros,
    has_pixel_pairs,
)
from cuconv.costs import constant
from cuconv.device import REGISTERS_PER_SM, DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds of what each says."""

    start: float = constant("a launch, and a block from start to end, without its weights and tiles")
    weights: float = constant("a warpgroup's time to decompose 2**12 weights")
    latency: float = constant("a warpgroup's latency of a stage")
    latency_filters: float = constant("added latency for each 64 filters")
    work: float = constant("an SM's time for a warpgroup's stage, where other warpgroups hide the latency")
    work_filters: float = constant("added work for each 64 filters")
    work_unpaired: float = constant("added work where pixels are not loaded in pairs")
    tile: float = constant("latency of the end of a tile")
    write: float = constant("an SM's time to write 2**12 outputs")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_unpaired: float = constant("added for 2**20 bytes of output whose pixels are not written in pairs")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's filters, whose weights stay in shared memory, and its warpgroups, each with tiles of 64 pixels."""

    filters: int
    warpgroups: int

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return 128 * self.warpgroups

    @property
    def registers(self) -> int:
        """Registers of a thread, at most."""
        return 128 if self.filters <= 32 else 168

    @property
    def min_blocks_per_sm(self) -> int:
        """Blocks that an SM's registers hold, as __launch_bounds__ tells the compiler."""
        return REGISTERS_PER_SM // (self.threads * self.registers)

    def __str__(self) -> str:
        return f"{self.filters}x{WARPGROUP_PIXELS}x{STAGE_DEPTH} warpgroups={self.warpgroups}"


# Many small blocks where weights are few, else as many warpgroups around the same weights as registers allow.
TILES = tuple(Tile(filters, warpgroups) for filters in (16, 32) for warpgroups in (1, 2, 3, 4))
TILES += tuple(Tile(filters, warpgroups) for filters in (48, 64) for warpgroups in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Tf32x3StationaryConfig:
    """A launch configuration: a tile, the occupancy (blocks that an SM holds at a time), and the grid."""

    tile: Tile
    resident: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0
    products: ClassVar[int] = PRODUCTS[FP32]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    def __str__(self) -> str:
        return f"tile={self.tile} resident={self.resident} {grid_text(self)}"


class Tf32x3Stationary(Algorithm[Tf32x3StationaryConfig, Costs]):
    """1x1 convolution with wgmma at FP32 accuracy (3xTF32), for Hopper: many pixels, and weights that stay in an SM."""

    source = Path(__file__).with_suffix(".cu")
    summary = "1x1 convolution with wgmma at FP32 accuracy (3xTF32), for Hopper: many pixels, weights stay in an SM."
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """A sample: each tile over single and paired pixels, and each other macro in each of its settings."""
        if arch != HOPPER_ARCH:
            return []
        single, paired = ConvProblem(2, 32, 9, 9, 8, 1, 1), ConvProblem(2, 32, 9, 8, 8, 1, 1)
        uneven, linear = ConvProblem(2, 33, 9, 9, 8, 1, 1), ConvProblem(1, 33, 9, 8, 8, 1, 1)
        sample = [_macros(problem, tile, aligned=True) for problem in (single, paired, uneven) for tile in TILES]
        sample += [_macros(linear, tile, aligned) for tile in (TILES[0], TILES[-1]) for aligned in (True, False)]
        evicted = [_macros(problem, TILES[-1], aligned=True) for problem in (uneven, paired)]
        residual = [_macros(paired, tile, aligned=True) for tile in TILES]
        return sample + [m | {"EVICT_FIRST": 5} for m in evicted] + [m | {"RESIDUAL": 1} for m in residual]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3StationaryConfig]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        require_dense(problem, self.name)
        check_device_and_indices(problem, device)
        if not is_pointwise(problem):
            raise UnsupportedProblem(f"{problem.label}: tf32x3_stationary is for filters of 1x1 without padding")
        parts = PARTS[PRODUCTS[FP32]]
        found = []
        for tile in TILES:
            filter_tiles = ceil(problem.m / tile.filters)
            shared_bytes = FLOAT_BYTES * parts * tile.filters * STAGE_DEPTH * stages_of(problem, STAGE_DEPTH)
            resident = device.resident_blocks(tile.threads, tile.registers, shared_bytes)
            # Every filter tile gets the same number of blocks: as many as the GPU holds, or as many as have pixels.
            blocks_per_filter_tile = min(
                device.sm_count * resident // filter_tiles, ceil(_pixel_tiles(problem) / tile.warpgroups)
            )
            blocks = filter_tiles * max(1, blocks_per_filter_tile)
            found.append(Tf32x3StationaryConfig(tile, resident, blocks, shared_bytes))
        return launchable(found, problem, device)

    def estimate_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Tf32x3StationaryConfig, costs: Costs
    ) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        A stage takes its latency while an SM has few warpgroups, and its share of the SM's throughput where it has
        many: their norm goes from one to the other. Device memory hides behind all that, unless both take long: a norm
        again.
        """
        tile, stages = config.tile, stages_of(problem, STAGE_DEPTH)
        unpaired = not has_pixel_pairs(problem, aligned=True)
        blocks_per_filter_tile = config.blocks // ceil(problem.m / tile.filters)
        sm_warpgroups = tile.warpgroups * ceil(config.blocks / device.sm_count)
        latency_us = costs.latency + costs.latency_filters * tile.filters / 64
        work_us = costs.work + costs.work_filters * tile.filters / 64 + costs.work_unpaired * unpaired
        tile_us = stages * hypot(latency_us, sm_warpgroups * work_us)
        tile_us += costs.tile + sm_warpgroups * costs.write * WARPGROUP_PIXELS * tile.filters / 2**12
        iterations = ceil(_pixel_tiles(problem) / (blocks_per_filter_tile * tile.warpgroups))
        start_us = costs.start + costs.weights * tile.filters * stages * STAGE_DEPTH / tile.warpgroups / 2**12
        written_mib = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        moved_us = memory_us(problem, costs.memory) + costs.memory_unpaired * unpaired * written_mib
        return start_us + hypot(iterations * tile_us, moved_us)

    def summation(self, config: Tf32x3StationaryConfig) -> tuple[int, ...]:
        """Nothing: a warpgroup adds the whole reduction, in order."""
        return ()

    def kernels(self, problem: ConvProblem, config: Tf32x3StationaryConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which overlaps with the kernel ahead and waits for it itself."""
        macros = _macros(problem, config.tile, options.aligned) | options.macros
        arguments = (*arguments_of(problem, options.relu), *options.arguments)
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True),)


def _pixel_tiles(problem: ConvProblem) -> int:
    """The tiles of 64 pixels that each filter tile is multiplied by."""
    return ceil(problem.n * problem.out_pixels / WARPGROUP_PIXELS)


def _macros(problem: ConvProblem, tile: Tile, aligned: bool) -> Macros:
    """The macros of the kernel variant for a layer. aligned: whether all operands start at a multiple of 16 bytes."""
    columns = column_macros(problem, aligned)
    return {
        "FILTERS": tile.filters,
        "WARPGROUPS": tile.warpgroups,
        "MIN_BLOCKS_PER_SM": tile.min_blocks_per_sm,
        "VECTOR": int(has_aligned_rows(problem, aligned)),
        **{name: columns[name] for name in ("STAGE_DEPTH", "LINEAR", "WHOLE", "PAIRED", "EVICT_FIRST")},
    }
