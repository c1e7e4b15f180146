"""cuConv on a GPU with weights that are packed before the call, as `cuconv.prepare` keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch

import cuconv
from cuconv.core.problem import ConvProblem
from cuconv.device import device_spec
from cuconv.runtime.background import waiting
from harness.contenders import cuconv_gpu
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared


class Contender(cuconv_gpu.Contender):
    """`auto` on prepared weights. Its times leave out what conv2d does with the weights at every call."""

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Compile the kernels that the sweep will launch."""
        problems = [replace(problem, precision=self.precision) for problem in problems]
        cuconv.precompile(problems, device_spec(torch.cuda.current_device()), prepared=True)

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The one offer, of `auto` on prepared weights."""
        problem = replace(problem, precision=self.precision)
        prepare = partial(_prepare, problem, cuconv_gpu.laid_out(operands, self.precision))
        return [Offer("cuconv_prepared", "auto", prepare, self.precision)]


def _prepare(problem: ConvProblem, operands: Operands) -> Prepared:
    try:
        plan = cuconv.plan(problem, operands.input.device.index, prepared=True)
    except cuconv.UnsupportedProblem as error:
        raise NotRunnable("unsupported", str(error)) from None
    layer = cuconv.prepare(operands.weight, **problem.geometry, precision=problem.precision)

    def call() -> torch.Tensor:
        layer(operands.input, out=operands.output)
        return operands.output

    with waiting():
        call()  # compiles, and packs the weights
    return Prepared(call, plan.workspace_bytes, str(plan))
