"""1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common import eviction, subsample
from cuconv.algorithms.common.implicit_gemm import PRODUCTS, is_pointwise
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes
from cuconv.algorithms.common.listed import PREPARED, Forms, ListedVariants, listed, slowdowns, with_prepared
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.algorithms.common.weight_packing import WeightPacking
from cuconv.algorithms.pointwise import cost_model
from cuconv.algorithms.pointwise.candidates import Many, least_us, many, times_us
from cuconv.algorithms.pointwise.cost_model import Costs
from cuconv.algorithms.pointwise.tiles import (
    VECTOR,
    Fp16x3PointwiseConfig,
    grain_of,
    has_grid_stride,
    pitch,
    plane_of,
    producer_threads,
    static_shared_bytes,
)
from cuconv.core.elementwise import Number
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem
from cuconv.device import DeviceSpec

MAX_COPY = MAX_INDEX - 2**12  # elements, with room for a block


class Fp16x3Pointwise(ManyConfigurations[Fp16x3PointwiseConfig, Costs], ListedVariants[Fp16x3PointwiseConfig, Costs]):
    """Multiplies pixels as they lie in memory, decomposed into FP16 parts, by packed weights."""

    source = Path(__file__).with_suffix(".cu")
    summary = (
        "1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound"
    )
    precisions = tuple(PRODUCTS)
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants, also with prepared weights; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        return [
            macros
            for macros in with_prepared(listed(self.source))
            if not (macros["PACKS_WEIGHTS"] and PREPARED in macros)
        ]

    def forms(self, problem: ConvProblem, config: Fp16x3PointwiseConfig, options: CallOptions) -> Forms:
        """The one variant that the main kernel may be."""
        return [(1.0, _macros(subsample.on_dense(problem), config, options) | options.macros)]

    def slowdowns(
        self, problem: ConvProblem, device: DeviceSpec, many: Fp16x3PointwiseConfig, options: CallOptions
    ) -> Any:
        """The `slowdown` of each configuration that `many` made."""
        return slowdowns(self.source, self.forms(problem, many, self._possible(problem, options)))

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[Fp16x3PointwiseConfig, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        With a stride they are those of the convolution on a copy of the pixels that it reads, at the end of the
        workspace. Raises UnsupportedProblem where no configuration can run.
        """
        found = self._many(problem, device)
        return found.configs, found.possible

    def timed(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> tuple[Fp16x3PointwiseConfig, Any, Any]:
        """The two results of `many`, and the predicted times, of which a layer of all sizes has most in common."""
        found, costs = self._many(problem, device), self.costs(problem.precision)
        if not subsample.is_subsampled(problem):
            return found.configs, found.possible, times_us(problem, device, found, costs, prepared)
        dense_us = times_us(subsample.on_dense(problem), device, found, costs, prepared)
        return found.configs, found.possible, dense_us + subsample.predicted_us(problem)

    def _many(self, problem: ConvProblem, device: DeviceSpec) -> Many:
        if not subsample.is_subsampled(problem):
            return many(problem, device, self.name)
        copy = subsample.copy_bytes(problem)
        check_sizes(problem, self.name, [("elements of a copy", copy // FLOAT_BYTES, MAX_COPY)])
        found = many(subsample.on_dense(problem), device, self.name)
        workspace_bytes = subsample.aligned_bytes(found.configs.workspace_bytes) + copy
        return found._replace(configs=replace(found.configs, workspace_bytes=workspace_bytes))

    def estimate_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Fp16x3PointwiseConfig, costs: Costs
    ) -> float:
        """The device time of all kernels in microseconds, by the cost model with the given constants."""
        if not subsample.is_subsampled(problem):
            return cost_model.estimate_us(problem, config, costs)
        dense_us = cost_model.estimate_us(subsample.on_dense(problem), config, costs)
        return dense_us + subsample.predicted_us(problem)

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The bound of `candidates.least_us`, and the time of the copy with a stride."""
        if not is_pointwise(problem) or problem.groups > 1 or not device.is_hopper:
            return inf
        costs = self.costs(problem.precision)
        if not subsample.is_subsampled(problem):
            return least_us(problem, device, costs, prepared)
        copied_us = subsample.predicted_us(problem)
        return copied_us + least_us(subsample.on_dense(problem), device, costs, prepared)

    def kernels(self, problem: ConvProblem, config: Fp16x3PointwiseConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The main kernel, after the kernel that packs the weights unless blocks pack them; both may start early.

        With a stride the kernel that copies the pixels comes first.
        """
        if not subsample.is_subsampled(problem):
            return self._dense_kernels(problem, config, options)
        offset = config.workspace_bytes - subsample.copy_bytes(problem)
        *before, main = self._dense_kernels(subsample.on_dense(problem), config, options)
        main = replace(main, arguments=(WORKSPACE + offset, *main.arguments[1:]))
        return (subsample.launch(problem, offset), *before, main)

    def _dense_kernels(
        self, problem: ConvProblem, config: Fp16x3PointwiseConfig, options: CallOptions
    ) -> tuple[Launch, ...]:
        """The launches of a convolution of stride 1; the input is the first argument of the last."""
        c, p, ((_, macros), *_) = config, problem, self.forms(problem, config, options)
        operands, sizes = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE), (p.n, p.c, p.h, p.w, p.m)
        arguments: tuple[Address | int, ...] = (
            *operands,
            *sizes,
            *options.activation_arguments,
            options.output_planes(p),
            eviction.evict_first(p),
            *options.arguments,
        )
        main = Launch(self.source, macros, self.name, c.blocks, c.threads, arguments, c.shared_bytes, overlap=True)
        if c.packs_weights:
            return (main,)
        publishers = c.blocks if c.tail_split_k > 1 else 0
        packing = WeightPacking(c.filters, c.channels, c.products)
        return (packing.launch(p, self.source, macros, publishers, options.packed), main)

    def summation(self, config: Fp16x3PointwiseConfig) -> tuple[int, ...] | None:
        """The filters and channels that share a scale of the weights, and the consumers that share the reduction.

        A pixel has scales of its own. None where the blocks of the last wave share the reduction of its tiles.
        """
        return (config.filters, config.channels, config.sharers) if config.tail_split_k == 1 else None

    def packing_us(self, problem: ConvProblem, config: Fp16x3PointwiseConfig, costs: Costs) -> Number:
        """The estimated time of the kernel that packs the weights, in microseconds; 0 where the blocks pack them."""
        return cost_model.packing_us(problem, config, costs)

    def packing(self, problem: ConvProblem, config: Fp16x3PointwiseConfig) -> WeightPacking | None:
        """How the kernel ahead of the main one packs the weights; None where the blocks pack them."""
        return None if config.packs_weights else WeightPacking(config.filters, config.channels, config.products)

    def static_shared_bytes(self, macros: Macros) -> int:
        """The static shared memory that configurations of a variant leave room for, in bytes."""
        return static_shared_bytes(macros["CONSUMERS"], macros["WEIGHT_STAGES"])


def _macros(problem: ConvProblem, config: Fp16x3PointwiseConfig, options: CallOptions) -> dict[str, Number]:
    """The macros of the kernel variant for a convolution of stride 1; arrays for many configurations.

    The head of fp16x3_pointwise.cu explains them.
    """
    c, p, plane = config, problem, plane_of(problem, config.layout)
    has_vectors = options.aligned & ((p.out_pixels % VECTOR == 0) | (plane > 0))
    return {
        "FILTERS": c.filters,
        "CHANNELS": c.channels,
        "CONSUMERS": c.consumers,
        "WARPGROUP_SPLIT_K": 1 * c.warpgroup_split_k,
        "PIXEL_STAGES": c.pixel_stages,
        "WEIGHT_STAGES": c.weight_stages,
        "WEIGHTS_RESIDENT": 1 * c.weights_resident,
        "GRID_STRIDE": 1 * has_grid_stride(p, c),
        "TAIL_SPLIT_K": c.tail_split_k,
        "PACKS_WEIGHTS": c.packs_weights * (VECTOR if options.aligned and p.c % VECTOR == 0 else 1),
        "EPILOGUE_FILTERS": c.epilogue_filters,
        "VECTOR": 1 * has_vectors,
        "SHIFTED": grain_of(c.layout),
        "PLANE": plane,
        "EVICT_FIRST": int(eviction.evict_first(p) > 0),
        "PRODUCTS": c.products,
        "PITCH": pitch(plane),
        "PRODUCER_THREADS": producer_threads(c.consumers),
        "SHARED_BYTES": c.shared_bytes,
    }
