"""What the fp16x3 algorithms share on the host, as their kernels share fp16x3_split.cuh: splitting the weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem

# As in the .cuh file.
FILTERS = 32  # of a block
GROUP_WARPS = 5  # at most, of a block for eight channels
PAIR_BYTES = 4  # a weight as two FP16 numbers


@dataclass(frozen=True, slots=True)
class SplitCosts:
    """Microseconds of that kernel, without its launch."""

    split: float = constant("splitting 2**14 weights on an SM, by the kernel ahead")
    split_bytes: float = constant("2**20 bytes read or written by that kernel")


@dataclass(frozen=True, slots=True)
class Split:
    """How the weights are split: for tiles of so many filters, in chunks of so many channels."""

    filters: int
    channels: int

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
        """Of the split weights, filters' exponents and channels' scales."""
        weights = self.filters * self.channels * self.taps(problem)
        return self.parts(problem) * (weights * PAIR_BYTES + (self.filters + self.channels) * FLOAT_BYTES)

    def launch(self, problem: ConvProblem, source: Path, macros: dict[str, int], blocks: int) -> Launch:
        """blocks: of the main kernel that leave sums to each other, whose flags are cleared."""
        p, groups = problem, self.channels // 8
        threads = 32 * self.group_warps(p) * groups
        shared_bytes = FLOAT_BYTES * FILTERS * (self.channels * p.filter_area | 1)
        arguments = (WEIGHT, WORKSPACE, p.m, p.c, blocks)
        return Launch(source, macros, "split_weights", self.blocks(p), threads, arguments, shared_bytes, overlap=True)

    def predicted_us(self, problem: ConvProblem, device: DeviceSpec, costs: SplitCosts) -> float:
        """Estimated time: rounds of blocks, and bytes."""
        of_block = FILTERS * self.channels * problem.filter_area
        read_and_written = FLOAT_BYTES * problem.m * problem.c * (problem.filter_area + self.taps(problem))
        rounds = ceil(self.blocks(problem) / device.sm_count)
        return costs.split * of_block / 2**14 * rounds + costs.split_bytes * read_and_written / 2**20
