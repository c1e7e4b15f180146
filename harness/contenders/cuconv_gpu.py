"""cuConv on a GPU: `auto`, which is conv2d's default, and each of its algorithms by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch

import cuconv
from cuconv.algorithms import offering
from cuconv.core.problem import CHANNELS_LAST, TF32_LAST, ConvProblem
from cuconv.device import device_spec
from cuconv.runtime.background import waiting
from cuconv.select import BATCH_INVARIANT
from harness.contenders import base, registry
from harness.contenders.base import LAYOUTS, NotRunnable, Offer, Operands, Prepared
from harness.contenders.compiling import compile_for
from harness.precision import TF32


class Contender(base.Contender):
    """The library of this project."""

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Compile the kernels that the sweep will launch; None stands for every algorithm."""
        problems, wanted = list(problems), defaultdict(list)
        for name, algorithm, precision in self._entries():
            if algorithms is None or name in algorithms:
                wanted[precision].append(algorithm)
        for precision, names in wanted.items():
            computed = [replace(problem, precision=precision) for problem in problems]
            compile_for(computed, device_spec(torch.cuda.current_device()), names)

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """`auto`, `batch_invariant`, and every algorithm of the library that computes in the precision."""
        return [
            Offer("cuconv", name, partial(_prepare, algorithm, problem, operands, precision), self.precision)
            for name, algorithm, precision in self._entries()
        ]

    def _entries(self) -> list[tuple[str, str, str]]:
        """Each offer's name in rows, its algorithm, and the precision of its problems."""
        names = ("auto", BATCH_INVARIANT, *offering(self.precision))
        last = [(registry.AUTO_NHWC, "auto", TF32_LAST)] if self.precision == TF32 else []
        return [*((name, name, self.precision) for name in names), *last]


def laid_out(operands: Operands, precision: str) -> Operands:
    """The tensors as cuConv takes them in the precision of a problem: NCHW in float32, channels last in others."""
    return operands.laid_out(LAYOUTS[precision][-1 if precision in CHANNELS_LAST else 0])


def _prepare(algorithm: str, problem: ConvProblem, operands: Operands, precision: str) -> Prepared:
    problem, operands = replace(problem, precision=precision), laid_out(operands, precision)
    try:
        plan = cuconv.plan(problem, operands.input.device.index, algorithm, residual=operands.residual is not None)
    except cuconv.UnsupportedProblem as error:
        raise NotRunnable("unsupported", str(error)) from None
    convolve = partial(
        cuconv.conv2d,
        operands.input,
        operands.weight,
        **problem.geometry,
        bias=operands.bias,
        residual=operands.residual,
        relu=operands.bias is not None,
        out=operands.output,
        algorithm=algorithm,
        precision=TF32 if precision == TF32_LAST else precision,
    )

    def call() -> torch.Tensor:
        convolve()
        return operands.output

    with waiting():
        call()  # compiles
    return Prepared(call, plan.workspace_bytes, str(plan))
