"""The contenders on whole networks: torch in five ways, torch with cuDNN's fastest engines, and cuConv in two ways.

A contender takes a model of its own on the GPU and an input, and returns the call of one forward. Model and input are
in float32, and the settings of `set_torch` say whether TF32 is allowed; in the precision FP16 they are in float16, and
cuConv's are in channels_last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

import torch

from harness.experiments.networks.models import logits
from harness.experiments.networks.rows import (
    CUCONV,
    CUCONV_ENABLED,
    TORCH_COMPILE,
    TORCH_COMPILE_FROZEN,
    TORCH_FASTEST_ENGINES,
    TORCH_FROZEN_CHANNELS_LAST,
)
from harness.precision import FP16, FP32, PRECISIONS, TF32

Forward = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A forward that was not run yet; detail says what is particular about it, for the CSV file."""

    forward: Forward
    detail: str = ""


Prepare = Callable[[torch.nn.Module, torch.Tensor, str], Prepared]  # takes a model, images and a precision


def set_torch(precision: str, benchmark: bool = True) -> None:
    """Set torch up for a process: cuDNN's benchmark or its heuristics, and TF32 allowed in cuDNN and cuBLAS or not."""
    allowed = precision == TF32
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.benchmark_limit = 0  # a benchmark tries all plans of a convolution, not torch's default of 10
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


def _torch(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    return Prepared(lambda: logits(model(images)))


def _in_channels_last(prepare: Prepare) -> Prepare:
    """The contender with weights and input in channels_last; an input that is no batch of images stays contiguous."""

    def prepared(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        layout = torch.channels_last if images.dim() == 4 else torch.contiguous_format
        return prepare(model, images.contiguous(memory_format=layout), precision)

    return prepared


def _compiled(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    compiled = torch.compile(model)
    return Prepared(lambda: logits(compiled(images)))


def _frozen(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    """torch.compile with weights as constants: it folds batch norm, as cuConv does, and may change layouts."""
    compiled = torch.compile(model, options={"freezing": True})
    return Prepared(lambda: logits(compiled(images)))


def _fastest_engines(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    compiled = torch.compile(import_module("harness.experiments.networks.fastest_engines").with_fastest_engines(model))
    return Prepared(lambda: logits(compiled(images)))


def _cuconv(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    nn = import_module("cuconv.nn")
    start = time.perf_counter()
    asked = precision if precision in PRECISIONS else FP32  # half precision is that of the model itself
    converted, _ = nn.convert(model, images, precision=asked)
    torch.cuda.synchronize()
    return Prepared(lambda: logits(converted(images)), f"convert {time.perf_counter() - start:.2f} s")


def _in_its_layout(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    """cuConv in the layout in which it computes a precision."""
    return (_cuconv if precision in PRECISIONS else _in_channels_last(_cuconv))(model, images, precision)


def _enabled(model: torch.nn.Module, images: torch.Tensor, precision: str) -> Prepared:
    nn, waiting = import_module("cuconv.nn"), import_module("cuconv.runtime.background").waiting

    def forward() -> torch.Tensor:
        with waiting(), nn.enabled(precision=precision):
            return logits(model(images))

    return Prepared(forward)


CONTENDERS: dict[str, Prepare] = {
    "torch": _torch,
    "torch_channels_last": _in_channels_last(_torch),
    TORCH_COMPILE: _compiled,
    TORCH_COMPILE_FROZEN: _frozen,
    TORCH_FROZEN_CHANNELS_LAST: _in_channels_last(_frozen),
    TORCH_FASTEST_ENGINES: _fastest_engines,
    CUCONV: _in_its_layout,
    CUCONV_ENABLED: _enabled,
}
MEASURED = (*PRECISIONS, FP16)  # in which networks are measured
LIMITED = {TORCH_FASTEST_ENGINES: (FP32,), CUCONV_ENABLED: PRECISIONS}  # not in every precision


def of_precision(names: Iterable[str], precision: str) -> list[str]:
    """The contenders of these that are measured in a precision."""
    return [name for name in names if precision in LIMITED.get(name, MEASURED)]
