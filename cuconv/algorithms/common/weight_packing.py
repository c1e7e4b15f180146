"""What the fp16x3 algorithms share on the host, as kernels do fp16x3_split.cuh: splitting the weights, a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.common.implicit_gemm import PARTS
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

# As in the .cuh file.
FILTERS = 32  # of a block
GROUP_WARPS = 5  # at most, of a block for eight channels
PART_BYTES = 2  # of a factor, which is one FP16 number, or two where there are three products


@dataclass(frozen=True, slots=True)
class SplitCosts:
    """Microseconds of that kernel, without its launch."""

    split: float = constant("a block of the kernel ahead, to split 2**14 weights")
    split_bytes: float = constant("2**20 bytes read or written by that kernel")


def factor_bytes(products: int) -> int:
    """Of a weight or an element of the input, in all its parts."""
    return PART_BYTES * PARTS[products]


def some_fit(found: list, problem: ConvProblem, device: DeviceSpec, algorithm: str) -> list:
    """The configurations that were found; raises UnsupportedProblem where there is none."""
    if found:
        return found
    raise UnsupportedProblem(
        f"{problem.label}: no tile of {algorithm} with its {problem.kh}x{problem.kw} filter fits "
        f"the {device.shared_bytes_per_block} bytes of shared memory of {device.name}"
    )


@dataclass(frozen=True, slots=True)
class Split:
    """How the weights are split: for tiles of so many filters, in chunks of so many channels."""

    filters: int
    channels: int
    products: int

    def taps(self, problem: ConvProblem) -> int:
        """Of a filter and channel, as they are split."""
        return problem.filter_area

    def group_warps(self, problem: ConvProblem) -> int:
        """Of a block for eight channels."""
        return min(problem.filter_area, GROUP_WARPS)

    def parts(self, problem: ConvProblem) -> int:
        """(tile, chunk) pairs, of which each has scales of its own."""
        return ceil(problem.m / self.filters) * ceil(problem.c / self.channels)

    def blocks(self, problem: ConvProblem) -> int:
        """Of the grid: a cluster for each pair."""
        return self.parts(problem) * ceil(self.filters / FILTERS)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """Of the split weights, filters' and channels' scales."""
        weight_bytes = factor_bytes(self.products) * self.filters * self.channels * self.taps(problem)
        return self.parts(problem) * (weight_bytes + (self.filters + self.channels) * FLOAT_BYTES)

    def launch(self, problem: ConvProblem, source: Path, macros: dict[str, int], blocks: int) -> Launch:
        """blocks: of the main kernel that leave sums to each other, whose flags are cleared."""
        p, groups = problem, self.channels // 8
        threads = 32 * self.group_warps(p) * groups
        shared_bytes = FLOAT_BYTES * FILTERS * (self.channels * p.filter_area | 1)
        arguments = (WEIGHT, WORKSPACE, p.m, p.c, blocks)
        return Launch(source, macros, "split_weights", self.blocks(p), threads, arguments, shared_bytes, overlap=True)

    def predicted_us(self, problem: ConvProblem, costs: SplitCosts) -> float:
        """Estimated time: a block's from start to end, and where there are many that of their bytes."""
        of_block = FILTERS * self.channels * problem.filter_area
        bytes_of_each = FLOAT_BYTES * problem.filter_area + factor_bytes(self.products) * self.taps(problem)
        moved_bytes = bytes_of_each * problem.m * problem.c
        return costs.split * of_block / 2**14 + costs.split_bytes * moved_bytes / 2**20
