"""Convolutions with one output pixel an image as products of a matrix and a few vectors, in plain FP32.

These are fully connected layers, and those of squeeze and excitation. `gemv.cu` has the kernel, docs/gemv.md the
design.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, hypot, inf
from pathlib import Path

from cuconv.algorithms.base import Algorithm, CallOptions, Macros
from cuconv.algorithms.common.implicit_gemm import depth_of, has_aligned_rows
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes
from cuconv.core.costs import constant
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

TILES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (4, 8))  # filters and images of a warp
WARPS = ((4, 1), (4, 2), (2, 4), (1, 8))  # a block's, over filters and over the reduction
MAX_IMAGES = 64  # beyond them tensor cores are faster
VECTOR = 4  # elements of a load of 16 bytes
SCHEDULERS = 4  # per SM: each issues an instruction at the same time as the others


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without loads and sums")
    latency: float = constant("a warp's latency of an iteration over the reduction")
    reduce: float = constant("a warp's latency to add a sum over its lanes")
    fetch: float = constant("an SM's time for a warp's load")
    multiply: float = constant("an SM's time for a warp's products of two loads")
    memory: float = constant("2**20 bytes of operands through device memory")
    cache: float = constant("2**20 bytes of rows through the L2 cache")


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """The filters and images of a warp, the warps of a block over filters and over the reduction, and the grid."""

    filters: int
    images: int
    warps: int
    split_k: int
    blocks: int
    shared_bytes: int = 0
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps * self.split_k

    def __str__(self) -> str:
        return f"tile={self.filters}x{self.images} warps={self.warps}x{self.split_k} grid={self.blocks}"


class Gemv(Algorithm[GemvConfig, Costs]):
    """Products of a matrix and a few vectors in plain FP32: layers with one output pixel an image."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Products of a matrix and a few vectors in plain FP32: layers with one output pixel an image."
    fuses_residual = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; they are the same for every architecture."""
        return [_macros(*tile, *warps, vector) for tile, warps, vector in product(TILES, WARPS, (VECTOR, 1))]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[GemvConfig]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        _check(problem, self.name)
        found = []
        for (filters, images), (warps, split_k) in product(TILES, WARPS):
            if images > 1 and images >= 2 * problem.n:  # half of its sums would be of no image
                continue
            blocks = ceil(problem.m / (filters * warps)) * ceil(problem.n / images)
            found.append(GemvConfig(filters, images, warps, split_k, blocks))
        return found

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: GemvConfig, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Four times overlap: a warp's latency, in waves of as many blocks as an SM holds; the SM's throughput; the
        operands' way through device memory; and the rows' way through L2, from where every warp fetches its own.
        """
        c, depth, sums = config, depth_of(problem), config.filters * config.images
        iterations = ceil(depth / (32 * VECTOR * c.split_k))
        warps, blocks = c.warps * c.split_k, ceil(c.blocks / device.sm_count)
        waves = ceil(blocks / device.resident_blocks(c.threads, _registers(c), c.shared_bytes))
        loads, rows = iterations * (c.filters + c.images), c.warps * (c.filters + c.images)
        latency_us = waves * (costs.latency * iterations + costs.reduce * sums)
        warp_us = costs.fetch * loads + costs.multiply * iterations * sums + costs.reduce * sums / SCHEDULERS
        memory_us = costs.memory * problem.min_bytes / 2**20
        cache_us = costs.cache * FLOAT_BYTES * depth * rows * c.blocks / 2**20
        return costs.start + hypot(latency_us, blocks * warps * warp_us, memory_us, cache_us)

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of the operands in device memory, in microseconds; inf for filters smaller than the input."""
        p = problem
        return super().least_us(p, device, prepared) if (p.kh, p.kw) == (p.h, p.w) else inf

    def kernels(self, problem: ConvProblem, config: GemvConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which may start before the kernel ahead ends."""
        vector = VECTOR if has_aligned_rows(problem, options.aligned) else 1
        macros = _macros(config.filters, config.images, config.warps, config.split_k, vector)
        operands, sizes = (INPUT, WEIGHT, BIAS, OUTPUT), (problem.n, depth_of(problem), problem.m)
        arguments: tuple[Address | int, ...] = (
            *operands,
            *sizes,
            *options.activation_arguments,
            options.residual_argument,
        )
        return (Launch(self.source, macros, self.name, config.blocks, config.threads, arguments, overlap=True),)

    def static_shared_bytes(self, macros: Macros) -> int:
        """The sums of the block's warps."""
        return FLOAT_BYTES * macros["SPLIT_K"] * macros["WARPS"] * macros["FILTERS"] * macros["IMAGES"]


def _check(problem: ConvProblem, name: str) -> None:
    """Raise UnsupportedProblem for more than one output pixel, padding, groups, and sizes beyond the kernel's."""
    p = problem
    whole = (p.kh, p.kw) == (p.h, p.w) and p.dilation_h == p.dilation_w == 1
    if not whole or p.is_padded or p.groups > 1:
        raise UnsupportedProblem(f"{p.label}: {name} is for filters as large as the input, without padding and groups")
    check_sizes(p, name, [("images", p.n, MAX_IMAGES), ("filters", p.m, MAX_INDEX // MAX_IMAGES)])


def _registers(config: GemvConfig) -> int:
    """Roughly the registers of a thread: sums, and loads that are under way."""
    return 32 + config.filters * config.images + VECTOR * (config.filters + config.images)


def _macros(filters: int, images: int, warps: int, split_k: int, vector: int) -> Macros:
    return {"FILTERS": filters, "IMAGES": images, "WARPS": warps, "SPLIT_K": split_k, "VECTOR": vector}
