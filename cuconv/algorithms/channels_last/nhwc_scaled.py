"""TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper.

FP16 has the 11 bits of TF32 and twice its rate. Two kernels copy images and filters to FP16, each divided by a power of
two that brings its largest number into FP16's range (`scale_rows.cu`). The kernel of nhwc_wgmma multiplies the copies,
and the sums by these factors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last import channels_last, nhwc_wgmma, scale_rows
from cuconv.algorithms.channels_last.channels_last import TF32_MACRO, ChannelsLast
from cuconv.algorithms.channels_last.nhwc_wgmma import MIN_BLOCKS_MACRO, WHOLE_MACRO, Config, NhwcWgmma, Tile
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, Operands
from cuconv.algorithms.channels_last.scale_rows import ScaledWeights
from cuconv.core.costs import constant
from cuconv.core.launch import PACKED, WORKSPACE, Launch
from cuconv.core.problem import FP16, TF32_LAST, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

MAIN, PACKING = NhwcWgmma(), ScaledWeights()


@dataclass(frozen=True, slots=True)
class Costs(nhwc_wgmma.Costs):
    """The constants of the cost model, in microseconds of what each says."""

    copy: float = constant("a kernel that copies operands, without its bytes")
    copy_bytes: float = constant("2**20 bytes that it reads or writes")
    scale: float = constant("added to the writing of 2**12 outputs, which are scaled and of float32")


class NhwcScaled(ChannelsLast[Config, Costs]):
    """TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper."""

    source = NhwcWgmma.source
    summary = "TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper: for large problems."
    precisions = (TF32_LAST,)
    costs_type = Costs

    @cached_property
    def name(self) -> str:
        """The name that `conv2d(algorithm=...)` takes. The source is that of nhwc_wgmma."""
        return "nhwc_scaled"

    def of_row(self, macros: Macros) -> list[Macros]:
        """The one kernel variant of a row of nhwc_wgmma's list, which has none for groups."""
        tile = Tile(macros["PIXELS"], macros["WARPGROUP_FILTERS"], macros["FILTER_WARPGROUPS"])
        return [] if macros["GROUPED"] else [macros | _macros(tile)]

    def row_of(self, variant: tuple[Any, ...], grouped: bool) -> Macros:
        """The row of nhwc_wgmma's list."""
        return MAIN.row_of(variant, grouped)

    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Those of nhwc_wgmma in FP16 that fit; raises UnsupportedProblem for what is not computed."""
        p = problem
        if p.groups > 1 or p.c % VECTOR_CHANNELS:
            raise UnsupportedProblem(
                f"{p.label}: nhwc_scaled computes one group of a multiple of {VECTOR_CHANNELS} channels"
            )
        found = MAIN.configurations(_copied(p), device)
        more = scale_rows.images(p).bytes + scale_rows.filters(p).bytes
        fits = (one for one in found if one.resident <= one.tile.most_resident(is_half=False))
        return [replace(one, workspace_bytes=more) for one in fits]

    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of all kernels in microseconds."""
        p = problem
        outputs = p.n * p.out_pixels * p.m / min(config.blocks, device.sm_count)  # of an SM
        copying_us = scale_rows.images(p).predicted_us(costs) + PACKING.predicted_us(p, costs)
        return MAIN.main_us(_copied(p), device, config, costs) + costs.scale * outputs / 2**12 + copying_us

    def packing(self, problem: ConvProblem, config: Config) -> ScaledWeights:
        """How a kernel ahead of the main one packs the weights."""
        return PACKING

    def summation(self, config: Config) -> Hashable:
        """What it is of nhwc_wgmma."""
        return MAIN.summation(config)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The kernels that copy filters and images, and the main kernel."""
        p, pixels, weights = problem, scale_rows.images(problem), scale_rows.filters(problem)
        weight_at = PACKED if options.packed else WORKSPACE + pixels.bytes
        operands = Operands(WORKSPACE + pixels.copies_at, weight_at + weights.copies_at, p.c, p.c * p.w, p.c)
        copying = scale_rows.launches(p, WORKSPACE, weight_at)
        return (*copying, self.main_launch(p, config, options, operands))

    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds the copies, behind their factors."""
        p, half, tile, boxes = problem, _copied(problem), config.tile, config.boxes
        weights = channels_last.weight_map(half, boxes, tile.filters, operands)
        factors = operands.input + -scale_rows.images(p).copies_at, operands.weight + -scale_rows.filters(p).copies_at
        arguments = (
            # The map of weights stands for those of output and residual, which are not used.
            channels_last.pixel_map(half, boxes, tile.pixels, operands), weights, weights, weights, *factors,
            *channels_last.arguments_of(p, options, tile.filters), nhwc_wgmma.tiles_of(p, tile),
            *channels_last.last_arguments(p, config.ring, options),
        )  # fmt: skip
        macros, grid = self.row_of(config.variant, grouped=False) | _macros(tile), (config.blocks, config.threads)
        return Launch(self.source, macros, self.source.stem, *grid, arguments, config.shared_bytes, overlap=True)


def _copied(problem: ConvProblem) -> ConvProblem:
    """The problem that the main kernel computes with the copies."""
    return replace(problem, precision=FP16)


def _macros(tile: Tile) -> Macros:
    """The macros that a row of the list does not have, or not for this type."""
    return {TF32_MACRO: 1, "SCALED": 1, WHOLE_MACRO: 0, MIN_BLOCKS_MACRO: tile.most_resident(is_half=False)}
