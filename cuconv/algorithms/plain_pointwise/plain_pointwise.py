"""1x1 convolutions of few channels as plain FP32 sums on the CUDA cores.

A thread keeps all channels of its positions in registers. `plain_pointwise.cu` has the kernel,
docs/plain_pointwise.md the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from pathlib import Path

from cuconv.algorithms.base import Algorithm, CallOptions, Macros
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.implicit_gemm import is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes, require_dense, require_fit
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import SECTOR_FLOATS, DeviceSpec

# The channels and positions that the registers of a thread hold.
INPUTS = ((8, 2), (8, 4), (16, 2), (16, 4), (24, 2), (24, 4), (32, 2), (48, 2), (64, 2))
MAX_CHANNELS = max(channels for channels, _ in INPUTS)
FILTERS = 8  # that a warp multiplies at a time
WARPS = 4  # of a block
FILTER_WARPS = (1, 2, 4)  # warps of a block that share its positions
LANES = 32
PADDING_FLOATS = 4  # behind a row of weights in shared memory
MAX_POSITIONS = MAX_INDEX - WARPS * LANES * max(positions for _, positions in INPUTS)  # the last tile may be partial


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without what follows")
    latency: float = constant("a block's latency to load its inputs and weights")
    chain: float = constant("a thread's latency of 2**8 multiply-adds")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    read: float = constant("an SM's time for 2**16 weights that threads read from shared memory")
    copy: float = constant("an SM's time for 2**10 copies of a warp to shared memory")
    memory: float = constant("2**20 bytes of operands through device memory")
    scattered: float = constant("added for 2**20 bytes of output in planes that begin within a sector of memory")
    cache: float = constant("2**20 bytes of inputs and weights through the L2 cache")


@dataclass(frozen=True, slots=True)
class PlainPointwiseConfig:
    """A launch configuration.

    channels, positions: what a thread holds in registers. filter_groups: groups of eight filters, which a warp takes in
    turn. filter_warps: warps of a block with the same positions; the others have positions of their own.
    overlap: whether the device lets the kernel start while the one ahead in the stream ends.
    """

    channels: int
    positions: int
    filter_groups: int
    filter_warps: int
    blocks: int
    shared_bytes: int
    overlap: bool
    workspace_bytes: int = 0
    threads: int = LANES * WARPS

    @property
    def block_filters(self) -> int:
        """The filters of a block."""
        return FILTERS * self.filter_groups * self.filter_warps

    @property
    def block_positions(self) -> int:
        """The positions of a block."""
        return LANES * self.positions * (WARPS // self.filter_warps)

    def __str__(self) -> str:
        tile = f"positions={self.positions} groups={self.filter_groups}x{self.filter_warps}"
        return f"channels={self.channels} {tile} grid={self.blocks} shared={self.shared_bytes}"


class PlainPointwise(Algorithm[PlainPointwiseConfig, Costs]):
    """Plain FP32 sums on the CUDA cores with all channels in registers: 1x1 layers of few channels."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Plain FP32 sums on the CUDA cores with all channels in registers: 1x1 layers of few channels."
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; they are the same for every architecture."""
        return [_macros(*inputs) for inputs in INPUTS]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[PlainPointwiseConfig]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        _check(problem, self.name)
        p, groups_of_layer, found = problem, ceil(problem.m / FILTERS), []
        least = min(channels for channels, _ in INPUTS if channels >= p.c)
        for (channels, positions), filter_warps in product(INPUTS, FILTER_WARPS):
            most = ceil(groups_of_layer / filter_warps)
            if channels != least or filter_warps >= 2 * groups_of_layer:
                continue
            for groups in sorted({most, *(1 << shift for shift in range(most.bit_length()))}):
                filters = FILTERS * groups * filter_warps
                tiles = ceil(p.n * p.out_pixels / (LANES * positions * (WARPS // filter_warps)))
                blocks = tiles * ceil(p.m / filters)
                shared_bytes = FLOAT_BYTES * (channels + 1) * (filters + PADDING_FLOATS)
                if shared_bytes <= device.shared_bytes_per_block and blocks <= MAX_INDEX:
                    sizes = (channels, positions, groups, filter_warps, blocks, shared_bytes)
                    found.append(PlainPointwiseConfig(*sizes, device.has_dependent_launch))
        return require_fit(found, p, device, self.name)

    def estimate_us(
        self, problem: ConvProblem, device: DeviceSpec, config: PlainPointwiseConfig, costs: Costs
    ) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Four times overlap, so that their norm counts: the latency of a block, in as many waves as an SM needs for its
        blocks; the SM's multiply-adds; reads of weights from its shared memory, and copies to it; and device memory
        with the L2 cache.
        """
        p, c = problem, config
        products = c.channels * FILTERS * c.filter_groups * c.positions  # a thread's
        weights = (c.channels + 1) * c.block_filters
        blocks = ceil_div(c.blocks, device.sm_count)  # an SM's
        resident = device.resident_blocks(c.threads, _registers(c), c.shared_bytes)
        latency_us = ceil_div(blocks, resident) * (costs.latency + costs.chain * products / 2**8)
        multiply_us = blocks * costs.multiply * c.threads * products / 2**16
        reads = c.threads * products / c.positions
        shared_us = blocks * (costs.read * reads / 2**16 + costs.copy * weights / LANES / 2**10)
        fetched = c.blocks * (p.c * c.block_positions + weights)
        scattered_us = costs.scattered * p.n * p.m * p.out_pixels * (p.out_pixels % SECTOR_FLOATS > 0)
        moved_us = (costs.memory * p.min_bytes + FLOAT_BYTES * (scattered_us + costs.cache * fetched)) / 2**20
        us: float = costs.start + norm(latency_us, multiply_us, shared_us, moved_us)
        return us

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of the operands or of the products in microseconds; inf for what the kernel does not compute."""
        p = problem
        if not is_pointwise(p) or not p.is_dense or p.c > MAX_CHANNELS:
            return inf
        costs = self.costs(p.precision)
        products_us = costs.multiply * p.flop / 2 / device.sm_count / 2**16
        return costs.start + max(products_us, super().least_us(p, device, prepared))

    def summation(self, config: PlainPointwiseConfig) -> tuple[int, ...]:
        """Nothing: a thread adds all channels, in order."""
        return ()

    def kernels(self, problem: ConvProblem, config: PlainPointwiseConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel; where it overlaps with the kernel ahead it waits for that itself."""
        p, c = problem, config
        arguments: tuple[Address | int, ...] = (
            *(INPUT, WEIGHT, BIAS, OUTPUT, options.residual_argument),
            *(p.n, p.c, p.m, options.output_planes(p), p.out_pixels, packed_divisor(p.out_pixels)),
            *options.activation_arguments,
            *(c.filter_groups, c.filter_warps, ceil(p.m / c.block_filters)),
        )
        macros = _macros(c.channels, c.positions)
        return (Launch(self.source, macros, self.name, c.blocks, c.threads, arguments, c.shared_bytes, c.overlap),)


def _check(problem: ConvProblem, name: str) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute, whatever the device."""
    p = problem
    require_dense(p, name)
    if not is_pointwise(p):
        raise UnsupportedProblem(f"{p.label}: {name} computes 1x1 without padding only")
    sizes = [
        ("channels", p.c, MAX_CHANNELS),
        ("output pixels in the batch", p.n * p.out_pixels, MAX_POSITIONS),
        ("weights", p.m * p.c, MAX_INDEX),
    ]
    check_sizes(p, name, sizes)


def _registers(config: PlainPointwiseConfig) -> int:
    """The registers of a thread, about."""
    return (config.channels + FILTERS) * config.positions * 5 // 4 + 34


def _macros(channels: int, positions: int) -> Macros:
    return {"CHANNELS": channels, "POSITIONS": positions}
