"""A contender of one's own: a Python file outside of this project with a function `conv2d`.

    def conv2d(input, weight, stride, padding, dilation, groups):
        ...  # float32, NCHW and MCHW, contiguous; stride, padding and dilation are pairs (rows, columns)

It returns the output, computed on torch's current stream. The call is captured in a CUDA graph: nothing in it may wait
for the GPU, as `.item()` does. The file may import modules that lie next to it.
`--contender FILE` of harness.run and of the reports names it. It is in the results under the file's name, and stands
next to the best of cuDNN as cuBLAS does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cuconv.core.problem import ConvProblem
from harness.contenders import base
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared, measured_workspace
from harness.contenders.registry import OWN, OWN_ALGORITHM
from harness.errors import UsageError
from harness.store.environment import OWN_FACT


class Contender(base.Contender):
    """The function of the file."""

    def __init__(self, precision: str) -> None:
        """Raises UsageError where the file cannot be imported or has no such function."""
        super().__init__(precision)
        self._conv2d = imported()

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The one algorithm. A ValueError or NotImplementedError of the function says that it cannot run."""
        assert OWN is not None
        return [Offer(OWN.stem, OWN_ALGORITHM, partial(_prepare, self._conv2d, problem, operands), self.precision)]


def facts() -> dict[str, str]:
    """The fact in the report of an environment: a hash of the sources in the file's folder, which it may import."""
    if OWN is None:
        return {}
    digest = hashlib.sha256()
    for path in sorted(OWN.parent.iterdir()):
        if path.suffix in (".py", ".cu", ".cuh") and path.is_file():
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return {OWN_FACT: digest.hexdigest()[:16]}


def _prepare(conv2d: Callable[..., torch.Tensor], problem: ConvProblem, operands: Operands) -> Prepared:
    call = partial(conv2d, operands.input, operands.weight, **problem.geometry)
    try:
        call()  # what a first call compiles or allocates for good is not that of a call
    except (NotImplementedError, ValueError) as reason:
        raise NotRunnable("unsupported", str(reason) or type(reason).__name__) from None
    return Prepared(call, measured_workspace(call) if operands.input.is_cuda else 0)


def imported() -> Callable[..., torch.Tensor]:
    """The function `conv2d` of the file. Raises UsageError where it cannot be imported or has none."""
    assert OWN is not None, "a contender is loaded by its entry in the registry"
    sys.path.append(str(OWN.parent))  # last: what lies next to the file hides no installed package
    spec: Any = importlib.util.spec_from_file_location(OWN.stem, OWN)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--contender {OWN}: it cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, "conv2d", None)
    if not callable(found):
        raise UsageError(
            f"--contender {OWN}: it has no function conv2d(input, weight, stride, padding, dilation, groups)"
        )
    function: Callable[..., torch.Tensor] = found
    return function
