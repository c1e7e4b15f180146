"""Who takes part, one file each. A contender turns a case's tensors into offers; the sweep does the rest.

To add one: a module with a class `Contender`, and a line in harness/roster.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch

from cuconv.problem import ConvProblem
from harness.precision import FP32, of_process
from harness.registry import PROVIDERS


class Unavailable(Exception):
    """The contender's library is not on this machine; said once, and the sweep goes on without it."""


class NotRunnable(Exception):
    """An algorithm that cannot run on a case: `status` is that of the CSV row, the message its detail."""

    def __init__(self, status: str, detail: str):
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of one case, shared by all contenders: float32, NCHW, contiguous, on the measured device."""

    input: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready to be timed: enqueues the whole convolution on the current stream and returns its output.

    workspace_bytes is the temporary memory of the call; detail names the engine or launch configuration.
    """

    call: Callable[[], torch.Tensor]
    workspace_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """An algorithm that a contender enters for a case. prepare() raises NotRunnable where it cannot run.

    precision is the accuracy class that it is measured in: what its FP32 operands may be rounded to.
    """

    provider: str
    algorithm: str
    prepare: Callable[[], Prepared]
    precision: str = FP32


class Contender(Protocol):
    """The constructor raises Unavailable where a library is absent. One instance serves a whole sweep, in one class."""

    def __init__(self, precision: str = FP32) -> None:
        self.precision = precision

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Called once before the first case, for what is better done for all; algorithms None stands for every one."""

    def offers(self, problem: ConvProblem, operands: Operands, workspace_limit: int) -> list[Offer]:
        """Every algorithm of this contender for the case, those that cannot run included; limit in bytes."""
        ...


def load(provider: str, precision: str = FP32) -> Contender:
    """The contender of a provider's name; raises Unavailable where this machine lacks what it needs.

    precision must be that of the process (harness.precision), or the class measured would not be the one in the row.
    """
    if precision != of_process():
        raise RuntimeError(f"this process measures {of_process()}: measure {precision} in another")
    return import_module(f"harness.contenders.{PROVIDERS[provider].module}").Contender(precision)


def check_workspace(needed: int, limit: int) -> None:
    """Raise NotRunnable where a call needs more temporary memory than the sweep allows (bytes)."""
    if needed > limit:
        raise NotRunnable("workspace_exceeded", f"needs {needed} bytes of workspace, the limit is {limit}")


def measured_workspace(call: Callable[[], torch.Tensor]) -> int:
    """Temporary bytes of a call that allocates through torch: its peak above what it found and returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return max(0, peak - kept)
