"""Weights of float32 as FP16 numbers times a power of two for each filter, packed for nhwc_scaled.

`pack_scaled.cu` has the kernel and the order of the numbers. It runs ahead of the main kernel of a call, or once for
constant weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.common.weight_packing import KERNEL
from cuconv.core.costs import constant
from cuconv.core.launch import PACKED, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, HALF_BYTES, ConvProblem, ceil_div

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 128
BOX_CHANNELS = 32
ROWS = 8  # filters are rounded up to a multiple: the swizzle repeats after them
ALIGNMENT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class ScaledWeightsCosts:
    """The constants of the kernel's cost model, in microseconds of what each says."""

    pack: float = constant("the kernel that packs the weights, without their bytes")
    pack_bytes: float = constant("2**20 bytes that it reads or writes")


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """How nhwc_scaled has its weights packed. There is one way, for tiles of every size."""

    def rows(self, problem: ConvProblem) -> int:
        """The filters of a box, with those that do not exist."""
        return ceil_div(problem.m, ROWS) * ROWS

    def boxes_at(self, problem: ConvProblem) -> int:
        """The bytes of the filters' factors, behind which the boxes begin."""
        return ceil_div(FLOAT_BYTES * self.rows(problem), ALIGNMENT) * ALIGNMENT

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The bytes of the factors and boxes."""
        boxes = problem.filter_area * ceil_div(problem.c, BOX_CHANNELS)
        return self.boxes_at(problem) + HALF_BYTES * BOX_CHANNELS * boxes * self.rows(problem)

    def address(self, packed: bool) -> Address:
        """Where the packed weights are: in memory of their own where they are constant."""
        return PACKED if packed else WORKSPACE

    def launch(self, problem: ConvProblem, packed: bool) -> Launch:
        """The launch of the kernel. packed: whether it packs constant weights, once."""
        p, rows = problem, self.rows(problem)
        arguments = (WEIGHT, self.address(packed), p.m, rows, p.filter_area, p.c, self.boxes_at(p))
        return Launch(SOURCE, {}, KERNEL, rows, THREADS, arguments, overlap=True)

    def predicted_us(self, problem: ConvProblem, costs: ScaledWeightsCosts) -> float:
        """The predicted time of the kernel in microseconds."""
        moved = FLOAT_BYTES * problem.m * problem.c * problem.filter_area + self.workspace_bytes(problem)
        return costs.pack + costs.pack_bytes * moved / 2**20


def variants(arch: str) -> list[dict[str, int]]:
    """The one kernel variant; none on GPUs without the main kernel."""
    return [{}] if arch == HOPPER_ARCH else []
