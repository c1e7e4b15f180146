"""cuConv on a GPU: `auto`, which is conv2d's default, and each of its algorithms by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch

import cuconv
from cuconv.algorithms import offering
from cuconv.core.problem import ConvProblem
from cuconv.device import device_spec
from cuconv.runtime.background import waiting
from cuconv.select import BATCH_INVARIANT
from harness.contenders import base
from harness.contenders.base import LAYOUTS, NotRunnable, Offer, Operands, Prepared
from harness.contenders.compiling import compile_for
from harness.precision import HALVES


class Contender(base.Contender):
    """The library of this project."""

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Compile the kernels that the sweep will launch; None stands for every algorithm."""
        names = [name for name in self._names() if algorithms is None or name in algorithms]
        problems = [replace(problem, precision=self.precision) for problem in problems]
        compile_for(problems, device_spec(torch.cuda.current_device()), names)

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """`auto`, `batch_invariant`, and every algorithm of the library that computes in the precision."""
        problem = replace(problem, precision=self.precision)
        operands = laid_out(operands, self.precision)
        return [
            Offer("cuconv", name, partial(_prepare, name, problem, operands), self.precision) for name in self._names()
        ]

    def _names(self) -> tuple[str, ...]:
        return ("auto", BATCH_INVARIANT, *offering(self.precision))


def laid_out(operands: Operands, precision: str) -> Operands:
    """The tensors as cuConv takes them: NCHW in float32, channels last in half precision."""
    return operands.laid_out(LAYOUTS[precision][-1 if precision in HALVES else 0])


def _prepare(algorithm: str, problem: ConvProblem, operands: Operands) -> Prepared:
    try:
        plan = cuconv.plan(problem, operands.input.device.index, algorithm)
    except cuconv.UnsupportedProblem as error:
        raise NotRunnable("unsupported", str(error)) from None
    convolve = partial(
        cuconv.conv2d,
        operands.input,
        operands.weight,
        **problem.geometry,
        out=operands.output,
        algorithm=algorithm,
        precision=problem.precision,
    )

    def call() -> torch.Tensor:
        convolve()
        return operands.output

    with waiting():
        call()  # compiles
    return Prepared(call, plan.workspace_bytes, str(plan))
