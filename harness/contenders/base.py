"""The contenders, one file each. A contender turns a case's tensors into offers, which the sweep measures.

To add one: a module with a class `Contender`, and an entry in `_ALL` of registry.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from typing import Any

import torch

from cuconv.core.problem import TF32_LAST, ConvProblem
from harness import variables
from harness.contenders.registry import NHWC, PROVIDERS
from harness.errors import UserError
from harness.precision import BF16, FP16, FP32, TF32, of_process


class Unavailable(UserError):
    """The contender's library is not on this machine. A sweep says so once and goes on without it."""


class NotRunnable(Exception):
    """An algorithm that cannot run on a case: `status` is that of the CSV row, the message its detail."""

    def __init__(self, status: str, detail: str):
        super().__init__(detail)
        self.status = status


class NoMemory(NotRunnable):
    """The device has no room for the workspace of a call, which takes `needed` bytes."""

    def __init__(self, needed: int):
        super().__init__("error", f"the device has no {needed} bytes left for the workspace")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Layout:
    """The type and the order in memory of a contender's tensors; `suffix` ends the names of its algorithms."""

    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @property
    def suffix(self) -> str:
        """The text that ends an algorithm's name: NHWC for channels last, otherwise empty."""
        return NHWC if self.channels_last else ""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in this type and order: itself, or a copy."""
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return tensor.to(self.dtype, memory_format=order)


PLAIN = Layout()
# The paper measures FP32 in NCHW. A user may have either, and engines are faster in one or the other.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    FP32: (PLAIN, Layout(channels_last=True)),
    TF32: (PLAIN, Layout(channels_last=True)),
    TF32_LAST: (PLAIN, Layout(channels_last=True)),
    FP16: (Layout(torch.float16), Layout(torch.float16, channels_last=True)),
    BF16: (Layout(torch.bfloat16), Layout(torch.bfloat16, channels_last=True)),
}


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of one case on the measured device.

    Those that contenders share are float32, NCHW and contiguous. In half precision their values are of that type.
    With a bias (M,), a call computes relu(convolution + bias), or relu(convolution + bias + residual) where there is a
    residual.
    """

    input: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None

    def laid_out(self, layout: Layout) -> Operands:
        """Copies of the tensors in another type or order. FP32 in NCHW are the tensors themselves."""
        if layout == PLAIN:
            return self
        bias = None if self.bias is None else self.bias.to(layout.dtype)
        residual = None if self.residual is None else layout.of(self.residual)
        return Operands(layout.of(self.input), layout.of(self.weight), layout.of(self.output), bias, residual)

    @classmethod
    def random(cls, problem: ConvProblem, generator: torch.Generator, epilogue: str = "") -> Operands:
        """Normal input and weights of a problem on the generator's device, and an output that is not initialised.

        With an epilogue (`harness.cases.config_files.Settings`) there are also a bias and maybe a residual, as large as
        the convolution's sums. All values are those of the problem's precision, so that the error of a call is its own.
        """
        device, dtype = generator.device, LAYOUTS[problem.precision][0].dtype

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype).float()

        input, weight = normal(*problem.input_shape), normal(*problem.weight_shape)
        output = torch.empty(problem.output_shape, device=device)
        scale = sqrt(problem.group_channels * problem.filter_area)
        bias = normal(problem.m, scale=scale) if epilogue else None
        residual = normal(*problem.output_shape, scale=scale) if epilogue == "bias_add_relu" else None
        return cls(input, weight, output, bias, residual)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready to be timed: it enqueues the whole convolution on the current stream and returns its output.

    workspace_bytes is the temporary memory of the call. It may be over the limit of a sweep, which the sweep checks.
    detail names the engine or the launch configuration where the algorithm's name does not.
    """

    call: Callable[[], torch.Tensor]
    workspace_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """An algorithm that a contender enters for a case. prepare() raises NotRunnable where it cannot run.

    precision: "fp32", "tf32" where the call may round its FP32 operands to TF32, or "fp16" and "bf16" for operands of
    this type. others: more functions like prepare, each for another way to compute the same: the sweep takes the
    fastest.
    """

    provider: str
    algorithm: str
    prepare: Callable[[], Prepared]
    precision: str = FP32
    others: tuple[Callable[[], Prepared], ...] = ()

    @property
    def ways(self) -> tuple[Callable[[], Prepared], ...]:
        """Every way to prepare the algorithm's call."""
        return (self.prepare, *self.others)


class Contender(ABC):
    """A library to measure. The constructor raises Unavailable where the library is absent; `load` looks for the GPU.

    One instance serves a whole sweep, in one precision.
    """

    def __init__(self, precision: str = FP32) -> None:
        self.precision = precision
        self.epilogue = ""  # the sweep's (`harness.cases.config_files.Settings`)
        self.layouts = LAYOUTS[precision]

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:  # noqa: B027
        """Prepare once, before the first case, for all problems; algorithms None stands for every one."""

    def get_ready(self, problem: ConvProblem) -> None:  # noqa: B027
        """Do what the offers of a case need of the host alone; other processes may measure on the GPU meanwhile.

        `offers` does the same where this was not called or has failed, so that errors are told once.
        """

    @abstractmethod
    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """Every algorithm of this contender for the case, those that cannot run included."""


def load(provider: str, precision: str = FP32) -> Contender:
    """The contender of a provider's name. Raises Unavailable where this machine lacks what it needs.

    Raises UsageError where an environment variable would change what is measured.

    precision must be that of the process (harness.precision): otherwise the row would name a precision that was not
    measured.
    """
    if precision != of_process():
        raise RuntimeError(f"this process measures {of_process()}: measure {precision} in another")
    variables.refuse()
    entry = PROVIDERS[provider]
    if entry.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable(f"{entry.label} needs an NVIDIA GPU, and torch sees none")
    module = import_module(f"harness.contenders.{entry.module}")
    contender: Contender = module.Contender(precision)
    return contender


@contextmanager
def temporarily(*settings: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, each given as (object, name, value); the values before are restored at the end."""
    before = [(place, name, getattr(place, name)) for place, name, _ in settings]
    try:
        for place, name, value in settings:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def exceeded(needed: int, limit: int) -> str:
    """The detail of a row whose call needs more workspace than the limit, both in bytes."""
    return f"needs {needed} bytes of workspace, the limit is {limit}"


def prepare_within(offer: Offer, limit: int) -> Prepared:
    """The call of an offer. Raises NotRunnable where it cannot run, or needs more than `limit` bytes of workspace."""
    try:
        prepared = offer.prepare()
        needed = prepared.workspace_bytes
    except NoMemory as reason:
        if reason.needed <= limit:
            raise
        needed = reason.needed
    if needed > limit:
        raise NotRunnable("workspace_exceeded", exceeded(needed, limit))
    return prepared


def measured_workspace(call: Callable[[], torch.Tensor]) -> int:
    """The temporary bytes of a call that allocates through torch: its peak above the memory before and its output."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return max(0, peak - kept)
