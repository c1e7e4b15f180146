"""cuDNN as torch calls it, in torch's three modes of choosing a plan: default, benchmark and deterministic.

torch caches the plan of a problem, per thread. The key of the cache has the deterministic flag, but not the benchmark
flag: `default` after `benchmark` would run the plan that benchmark chose, and the other way round. The cache cannot be
read or emptied, but its size can be limited. So it holds one plan, and a convolution of another shape evicts that plan
before each choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from cuconv.core.problem import ConvProblem
from harness.contenders import base
from harness.contenders.base import (
    Layout,
    Offer,
    Operands,
    Prepared,
    Unavailable,
    measured_workspace,
    temporarily,
)
from harness.precision import FP32, IN_TORCH

# Read once, at the first convolution of the process; importing torch is not yet one.
os.environ["TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"] = "1"


@dataclass(frozen=True, slots=True)
class _Mode:
    benchmark: bool = False
    deterministic: bool = False


AS_IT_COMES: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
MODES = {"default": _Mode(), "benchmark": _Mode(benchmark=True), "deterministic": _Mode(deterministic=True)}


def _settings(mode: _Mode, precision: str = FP32) -> AbstractContextManager[None]:
    """torch's cuDNN settings of a mode, in FP32 or with TF32 allowed; the settings before are restored at the end."""
    cudnn: Any = torch.backends.cudnn
    return temporarily(
        (cudnn, "enabled", True),
        (cudnn, "benchmark", mode.benchmark),
        (cudnn, "benchmark_limit", 0),  # a benchmark tries all plans
        (cudnn, "deterministic", mode.deterministic),
        # torch raises where allow_tf32, its older name, is set too
        (cudnn.conv, "fp32_precision", IN_TORCH[precision]),
    )


class Contender(base.Contender):
    """torch.nn.functional.conv2d, or torch's fused calls where a sweep has an epilogue, called from one thread.

    Raises Unavailable without cuDNN, and where torch's plan cache is not limited to one plan.
    """

    def __init__(self, precision: str = FP32) -> None:
        super().__init__(precision)
        if not torch.backends.cudnn.is_available():
            raise Unavailable("this build of torch has no cuDNN")
        self._chosen_by: object = None  # the call whose plan is in torch's cache
        if self._cache_outlives_eviction():
            raise Unavailable(
                "torch convolved before its plan cache was limited, so it would mix up its modes: "
                "set TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT=1 in the environment"
            )

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """torch's modes: default takes a plan by heuristics, benchmark the fastest of all plans that torch knows.

        torch's fused calls, those with an epilogue, know no deterministic mode.
        """
        modes = {name: mode for name, mode in MODES.items() if not (self.epilogue and mode.deterministic)}
        return [
            Offer(
                "torch",
                f"{name}{layout.suffix}",
                partial(self._prepare, mode, layout, problem, operands),
                self.precision,
            )
            for layout in self.layouts
            for name, mode in modes.items()
        ]

    def _prepare(self, mode: _Mode, layout: Layout, problem: ConvProblem, operands: Operands) -> Prepared:
        call = self._call(mode, operands.laid_out(layout), problem.geometry)
        call()  # chooses the plan; the memory of that is not the workspace of a call
        return Prepared(call, measured_workspace(call))

    def _call(self, mode: _Mode, operands: Operands, geometry: dict[str, Any]) -> Callable[[], torch.Tensor]:
        identity = object()

        def call() -> torch.Tensor:
            with _settings(mode, self.precision):
                if self._chosen_by is not identity:
                    self._evict(operands)
                    self._chosen_by = identity
                return _convolved(operands, geometry)

        return call

    def _evict(self, operands: Operands) -> None:
        """Evict the plan in torch's cache by another, of a shape that no network has.

        torch has one cache for its fused calls, and one for others: the plan is of a call like that on the operands.
        """
        output = torch.zeros(1, 1, 2, 2, device="cuda")
        bias = None if operands.bias is None else output.flatten()[:1]
        residual = None if operands.residual is None else output
        with _settings(MODES["default"], self.precision):
            _convolved(Operands(torch.zeros(1, 1, 3, 3, device="cuda"), output, output, bias, residual), AS_IT_COMES)

    def _cache_outlives_eviction(self) -> bool:
        """Whether torch still knows a plan that should be evicted; the memory that a benchmark takes tells."""
        output = torch.zeros(2, 16, 28, 28, device="cuda")
        operands = Operands(output, torch.zeros(16, 16, 3, 3, device="cuda"), output)
        call = self._call(MODES["benchmark"], operands, {**AS_IT_COMES, "padding": (1, 1)})
        chosen, repeated = measured_workspace(call), measured_workspace(call)
        self._chosen_by = None
        return measured_workspace(call) <= repeated < chosen


def _convolved(operands: Operands, geometry: dict[str, Any]) -> torch.Tensor:
    """The output of torch's call for the operands: the calls with bias and ReLU are those of torch's frozen models."""
    input, weight, bias, residual = operands.input, operands.weight, operands.bias, operands.residual
    if bias is None:
        return F.conv2d(input, weight, **geometry)
    steps = geometry["stride"], geometry["padding"], geometry["dilation"], geometry["groups"]
    if residual is None:
        return torch.cudnn_convolution_relu(input, weight, bias, *steps)
    return torch.cudnn_convolution_add_relu(input, weight, residual, 1.0, bias, *steps)
