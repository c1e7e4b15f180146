"""Short reductions, of few channels and a small filter, on the tensor cores at FP32 accuracy (3xTF32) or in TF32."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common.implicit_gemm import PARTS, PRODUCTS, arguments_of, depth_of, grid_text, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes
from cuconv.algorithms.tf32x3.tf32x3 import check_indices, memory_us
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

PIXELS = 32  # of a warp
SIDE_BY_SIDE = 4  # pixels of a lane
LANES = 4  # that share the rows of a reduction
MAX_DEPTH = 32  # of the reduction: the columns of a tile stay in registers
FILTERS = 16  # that a warp multiplies at a time
WARPS = (4, 8)  # of a block
SPLITS = (1, 2, 4)  # blocks that share a tile's filters
REGISTERS = (128, 168, 255)  # of a thread: 16, 12 and 8 warps an SM


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of its cost model: microseconds, where the meaning does not say otherwise."""

    start: float = constant("a launch, and a block from start to end, without its weights and tiles")
    weights: float = constant("a thread's time to split 2**4 weights")
    turn: float = constant("a warp's wait for a tile of pixels")
    filters: float = constant("the same, in addition, for each 8 filters and each depth of eight")
    fetch: float = constant("an SM's time to fetch 2**10 elements of rows")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_one: float = constant("the same, in addition, where they are written one by one")
    memory: float = constant("2**20 bytes of operands through device memory")
    crowded: float = constant("2**20 bytes of output, in addition, for each block of an SM but the first")
    memory_one: float = constant("the same, in addition, for outputs written one by one")


@dataclass(frozen=True, slots=True)
class Tf32x3ShallowConfig:
    """A block's filters and warps, the blocks of an SM, often fewer than it could hold, and of the grid."""

    block_filters: int
    warps: int
    resident: int
    blocks: int
    shared_bytes: int
    products: int
    overlap: bool  # with the kernel ahead: the device can
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    def __str__(self) -> str:
        block = f"filters={self.block_filters} warps={self.warps} resident={self.resident}"
        return f"{block} {grid_text(self)}"


def slots_of(problem: ConvProblem) -> tuple[int, int]:
    """Rows of the input, (c, ky), that a lane has, and positions in X of the rows that are left."""
    rows = problem.c * problem.kh
    if problem.kw == 1:
        return ceil(rows / LANES), 0
    return rows // LANES, ceil(rows % LANES * problem.kw / LANES)


def steps_of(problem: ConvProblem) -> int:
    """Depths of eight in the reduction, with what pads it."""
    return ceil(depth_of(problem) / 8)


def lie_side_by_side(problem: ConvProblem) -> bool:
    """Whether any four pixels, from a multiple of four on, lie in one row of one image."""
    return (problem.out_pixels if is_pointwise(problem) else problem.out_w) % SIDE_BY_SIDE == 0


def has_vectors(problem: ConvProblem, aligned: bool) -> bool:
    """Whether four pixels, and the inputs that they lie over, may be moved as 16 bytes."""
    p = problem
    same = is_pointwise(p) or (p.out_w == p.w and p.kw % 2 == 1)
    return aligned and same and lie_side_by_side(p)


def registers_of(problem: ConvProblem) -> int:
    """Of a thread: what the compiler needs without spills, rounded up to what fills an SM."""
    slots = ceil(depth_of(problem) / LANES)
    need = 30 + 18 * slots if is_pointwise(problem) else 48 + 17 * slots
    return next((limit for limit in REGISTERS if need <= limit), REGISTERS[-1])


class Tf32x3Shallow(Algorithm[Tf32x3ShallowConfig, Costs]):
    """Short reductions, of few channels and a small filter, on the tensor cores at FP32 accuracy (3xTF32) or in TF32."""

    source = SOURCE
    summary = "Short reductions, of few channels and a small filter, on the tensor cores at FP32 accuracy (3xTF32) or in TF32."
    precisions = PRECISIONS
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Each shape of a reduction, with and without vectors."""
        shapes = [ConvProblem(1, c, 8, 8, 8, 1, 1) for c in (3, 16, 24, 32)]
        shapes += [
            ConvProblem(1, c, 8, 8, 8, kh, kw, kh // 2, kw // 2) for c, kh, kw in ((3, 3, 3), (1, 5, 5), (4, 3, 1))
        ]
        shapes.append(ConvProblem(1, 8, 6, 6, 8, 1, 1, 1, 1))
        settings = [(shape, vector, 3) for shape in shapes for vector in (True, False)] + [(s, True, 1) for s in shapes]
        return [_macros(shape, WARPS[0], vector, products) for shape, vector, products in settings]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3ShallowConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        _check(problem)
        products = PRODUCTS[problem.precision]
        tiles = ceil(problem.n * problem.out_pixels / PIXELS)
        found = []
        for warps, split in product(WARPS, SPLITS):
            block_filters = ceil(problem.m / split / FILTERS) * FILTERS
            split = ceil(problem.m / block_filters)
            shared_bytes = FLOAT_BYTES * PARTS[products] * block_filters * 8 * steps_of(problem)
            if shared_bytes > device.shared_bytes_per_block:
                continue
            # Fewer than an SM holds are better where memory is what they wait for.
            for resident in range(1, device.resident_blocks(32 * warps, registers_of(problem), shared_bytes) + 1):
                blocks = split * min(ceil(tiles / warps), max(1, device.sm_count * resident // split))
                sizes = (block_filters, warps, ceil(blocks / device.sm_count), blocks, shared_bytes)
                found.append(Tf32x3ShallowConfig(*sizes, products, device.compute_capability >= (9, 0)))
        if not found:
            raise UnsupportedProblem(
                f"{problem.label}: the weights of {problem.m} filters in {max(SPLITS)} blocks, "
                f"the limit of {device.name} is {device.shared_bytes_per_block} bytes of shared memory"
            )
        return list(dict.fromkeys(found))

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Tf32x3ShallowConfig, costs: Costs) -> float:
        """Estimated device time in microseconds.

        A warp takes its tiles one after the other. A tile takes its latency while an SM has few warps, and its share of
        the throughput where it has many: their norm goes from one to the other.
        """
        steps, single = steps_of(problem), not has_vectors(problem, aligned=True)
        split = ceil(problem.m / config.block_filters)
        tiles = ceil(problem.n * problem.out_pixels / PIXELS)
        turns = ceil(tiles / (config.blocks // split * config.warps))
        warps = config.resident * config.warps  # of the busiest SM
        wait_us = costs.turn + costs.filters * steps * config.block_filters / 8
        outputs = PIXELS * config.block_filters
        work_us = costs.fetch * PIXELS * 8 * steps / 2**10 + costs.multiply * outputs * 8 * steps / 2**16
        work_us += (costs.write + costs.write_one * single) * outputs / 2**12
        weights_us = costs.weights * config.block_filters * 8 * steps / config.threads / 2**4
        # Blocks write far from each other, so the more of them the shorter the pieces of a plane that lie side by side.
        written = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        moved_us = (costs.memory_one * single + costs.crowded * (config.resident - 1)) * written + memory_us(
            problem, costs
        )
        return costs.start + weights_us + hypot(turns * hypot(wait_us, warps * work_us), moved_us)

    def launches(
        self, problem: ConvProblem, config: Tf32x3ShallowConfig, aligned: bool, relu: bool
    ) -> tuple[Launch, ...]:
        """The kernel; where the device can it may start while the one ahead of it ends, and waits by itself."""
        vector = has_vectors(problem, aligned)
        macros = _macros(problem, config.warps, vector, config.products)
        split = ceil(problem.m / config.block_filters)
        arguments = (*arguments_of(problem, relu), split, config.block_filters)
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, config.overlap),)


def _check(problem: ConvProblem) -> None:
    p = problem
    check_indices(p, MAX_INDEX)
    check_sizes(p, "tf32x3_shallow", [("weights in a filter", depth_of(p), MAX_DEPTH)])
    if not is_pointwise(p) and not lie_side_by_side(p):
        raise UnsupportedProblem(
            f"{p.label}: rows of {p.out_w} outputs, tf32x3_shallow computes filters of more than 1x1, or padded ones, "
            f"only where they are a multiple of {SIDE_BY_SIDE}"
        )
    if p.out_pixels < PIXELS:
        raise UnsupportedProblem(f"{p.label}: {p.out_pixels} pixels, tf32x3_shallow computes {PIXELS} or more")


def _macros(problem: ConvProblem, warps: int, vector: bool, products: int) -> Macros:
    # A lane's pixels lie side by side where they may be moved together, or where they share what they see.
    adjacent = vector or not is_pointwise(problem)
    rows, singles = slots_of(problem)
    return {
        "PRODUCTS": products,
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
