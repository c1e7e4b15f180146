"""Short reductions with mma.sync at FP32 accuracy (3xTF32) or in TF32: few channels, and a small filter.

Warps work on their own: each computes 32 pixels for all filters of its block. The four lanes of a fragment's row have
the same four pixels, and share the reduction out. `tf32x3_shallow.cu` has the kernel, docs/tf32x3_shallow.md the
design.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, hypot, inf
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.implicit_gemm import PARTS, PRODUCTS, arguments_of, depth_of, grid_text, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes, require_dense
from cuconv.algorithms.common.listed import Forms, ListedVariants, listed
from cuconv.algorithms.tf32x3.tf32x3 import check_indices, memory_us
from cuconv.core.costs import constant
from cuconv.core.launch import Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

WARP_PIXELS = 32  # pixels of a warp's tile
LANE_PIXELS = 4  # the pixels of a lane
LANES = 4  # with the same pixels; they share the rows of the reduction
STEP_DEPTH = 8  # depth of an mma instruction
MAX_DEPTH = 32  # a deeper reduction does not fit: the columns of a tile stay in registers
FILTERS = 16  # a warp multiplies these at a time
WARPS = (4, 8)  # per block
FILTER_SPLITS = (1, 2, 4)  # blocks that share the filters of the same pixels
REGISTERS = (128, 168, 255)  # a thread's, for an occupancy of 16, 12 and 8 warps


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its weights and tiles")
    weights: float = constant("a thread's time to decompose 2**4 weights")
    latency: float = constant("a warp's latency of a tile of pixels")
    latency_filters: float = constant("added latency for each 8 filters and each depth of eight")
    fetch: float = constant("an SM's time to fetch 2**10 elements of rows")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_scalar: float = constant("added where outputs are written one by one")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_blocks: float = constant("added for 2**20 bytes of output, for each block of an SM but the first")
    memory_scalar: float = constant("added for 2**20 bytes of output that are written one by one")


@dataclass(frozen=True, slots=True)
class Tf32x3ShallowConfig:
    """A launch configuration: filters and warps of a block, the occupancy, and the grid.

    resident: the blocks that each SM is given, often fewer than it could hold.
    overlap: whether the device lets the kernel start while the one ahead in the stream ends.
    """

    block_filters: int
    warps: int
    resident: int
    blocks: int
    shared_bytes: int
    products: int
    overlap: bool
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def __str__(self) -> str:
        block = f"filters={self.block_filters} warps={self.warps} resident={self.resident}"
        return f"{block} {grid_text(self)}"


class Tf32x3Shallow(ListedVariants[Tf32x3ShallowConfig, Costs]):
    """Short reductions with mma.sync at FP32 accuracy (3xTF32) or in TF32: few channels, and a small filter."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Short reductions with mma.sync at FP32 accuracy (3xTF32) or in TF32: few channels, and a small filter."
    precisions = tuple(PRODUCTS)
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants."""
        return listed(self.source)

    def forms(self, problem: ConvProblem, config: Tf32x3ShallowConfig, options: CallOptions) -> Forms:
        """The one variant that the main kernel may be."""
        macros = _macros(problem, config.warps, has_vectors(problem, options.aligned), config.products)
        return [(1.0, macros | options.macros)]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3ShallowConfig]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        _check(problem)
        products = PRODUCTS[problem.precision]
        tiles = ceil(problem.n * problem.out_pixels / WARP_PIXELS)
        found = []
        for warps, split in product(WARPS, FILTER_SPLITS):
            block_filters = ceil(problem.m / split / FILTERS) * FILTERS
            filter_blocks = ceil(problem.m / block_filters)
            shared_bytes = FLOAT_BYTES * PARTS[products] * block_filters * STEP_DEPTH * steps_of(problem)
            if shared_bytes > device.shared_bytes_per_block:
                continue
            # A lower occupancy than an SM allows is faster where device memory is the limit.
            for resident in range(1, device.resident_blocks(32 * warps, registers_of(problem), shared_bytes) + 1):
                pixel_blocks = min(ceil(tiles / warps), max(1, device.sm_count * resident // filter_blocks))
                blocks = filter_blocks * pixel_blocks
                sizes = (block_filters, warps, ceil(blocks / device.sm_count), blocks, shared_bytes)
                found.append(Tf32x3ShallowConfig(*sizes, products, overlap=device.compute_capability >= (9, 0)))
        if not found:
            raise UnsupportedProblem(
                f"{problem.label}: the weights of {problem.m} filters in {max(FILTER_SPLITS)} blocks, "
                f"the limit of {device.name} is {device.shared_bytes_per_block} bytes of shared memory"
            )
        return list(dict.fromkeys(found))

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Tf32x3ShallowConfig, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        A warp computes its tiles one after the other. A tile takes its latency while an SM has few warps, and its share
        of the SM's throughput where it has many: their norm goes from one to the other. Device memory hides behind all
        that, unless both take long: a norm again.
        """
        steps, scalar = steps_of(problem), not has_vectors(problem, aligned=True)
        tiles = ceil(problem.n * problem.out_pixels / WARP_PIXELS)
        pixel_blocks = config.blocks // _filter_blocks(problem, config)
        iterations = ceil(tiles / (pixel_blocks * config.warps))
        sm_warps = config.resident * config.warps
        latency_us = costs.latency + costs.latency_filters * steps * config.block_filters / 8
        outputs = WARP_PIXELS * config.block_filters
        work_us = costs.fetch * WARP_PIXELS * 8 * steps / 2**10 + costs.multiply * outputs * 8 * steps / 2**16
        work_us += (costs.write + costs.write_scalar * scalar) * outputs / 2**12
        weights_us = costs.weights * config.block_filters * 8 * steps / config.threads / 2**4
        # Blocks write far from each other: the more of them, the shorter the pieces of a plane that lie side by side.
        written_mib = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        scattered_us = costs.memory_scalar * scalar + costs.memory_blocks * (config.resident - 1)
        moved_us = scattered_us * written_mib + memory_us(problem, costs.memory)
        return costs.start + weights_us + hypot(iterations * hypot(latency_us, sm_warps * work_us), moved_us)

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of the operands in device memory, in microseconds; inf for longer reductions and not dense ones."""
        shallow = depth_of(problem) <= MAX_DEPTH and problem.is_dense
        return super().least_us(problem, device, prepared) if shallow else inf

    def summation(self, config: Tf32x3ShallowConfig) -> tuple[int, ...]:
        """Nothing: a warp adds the whole reduction, in order."""
        return ()

    def kernels(self, problem: ConvProblem, config: Tf32x3ShallowConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel; where it overlaps with the kernel ahead it waits for that itself."""
        ((_, macros), *_) = self.forms(problem, config, options)
        arguments = (
            *arguments_of(problem, options.activation),
            options.output_planes(problem),
            _filter_blocks(problem, config),
            config.block_filters,
        )
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, config.overlap),)


def slots_of(problem: ConvProblem) -> tuple[int, int]:
    """How the lanes share a reduction: the rows of the input, (c, ky), that each has, and its single positions.

    A lane has every position in X of its rows. The rows that are left when each lane has had as many are shared out by
    single positions in X.
    """
    rows = problem.c * problem.kh
    if problem.kw == 1:
        return ceil(rows / LANES), 0
    return rows // LANES, ceil(rows % LANES * problem.kw / LANES)


def steps_of(problem: ConvProblem) -> int:
    """The mma instructions over the reduction, which is padded to a multiple of their depth."""
    return ceil(depth_of(problem) / STEP_DEPTH)


def has_adjacent_pixels(problem: ConvProblem) -> bool:
    """Whether any four pixels, from a multiple of four on, lie side by side in one row of one image."""
    return (problem.out_pixels if is_pointwise(problem) else problem.out_w) % LANE_PIXELS == 0


def has_vectors(problem: ConvProblem, aligned: bool) -> bool:
    """Whether four pixels, and the inputs under them, can be moved as 16 bytes.

    aligned: whether input, weight and output all start at a multiple of 16 bytes.
    """
    p = problem
    same_rows = is_pointwise(p) or (p.out_w == p.w and p.kw == 2 * p.pad_w + 1)
    return aligned and same_rows and has_adjacent_pixels(p)


def registers_of(problem: ConvProblem) -> int:
    """Registers of a thread: what the compiler needs without spills, rounded up to a value of REGISTERS."""
    slots = ceil(depth_of(problem) / LANES)
    need = 30 + 18 * slots if is_pointwise(problem) else 48 + 17 * slots
    return next((limit for limit in REGISTERS if need <= limit), REGISTERS[-1])


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute, whatever the device."""
    p = problem
    require_dense(p, "tf32x3_shallow")
    check_indices(p, MAX_INDEX)
    check_sizes(p, "tf32x3_shallow", [("weights in a filter", depth_of(p), MAX_DEPTH)])
    if not is_pointwise(p) and not has_adjacent_pixels(p):
        raise UnsupportedProblem(
            f"{p.label}: rows of {p.out_w} outputs, tf32x3_shallow computes filters of more than 1x1, or padded ones, "
            f"only where they are a multiple of {LANE_PIXELS}"
        )
    if p.out_pixels < WARP_PIXELS:
        raise UnsupportedProblem(f"{p.label}: {p.out_pixels} pixels, tf32x3_shallow computes {WARP_PIXELS} or more")


def _filter_blocks(problem: ConvProblem, config: Tf32x3ShallowConfig) -> int:
    """The blocks that share the filters of the same pixels."""
    return ceil(problem.m / config.block_filters)


def _macros(problem: ConvProblem, warps: int, vector: bool, products: int) -> Macros:
    """The macros of the kernel variant for a layer. vector: whether four pixels are moved as 16 bytes."""
    # A lane's pixels are adjacent where they are moved together, or where they share the elements that they see.
    adjacent = vector or not is_pointwise(problem)
    rows, singles = slots_of(problem)
    return {
        "PRODUCTS": products,
        "PIXELS": WARP_PIXELS,
        "ROWS": rows,
        "SINGLES": singles,
        "KERNEL_H": problem.kh,
        "KERNEL_W": problem.kw,
        "POINTWISE": int(is_pointwise(problem)),
        "FILTERS": FILTERS,
        "WARPS": warps,
        "REGISTERS": registers_of(problem),
        "ADJACENT": int(adjacent),
        "VECTOR": int(vector),
    }
