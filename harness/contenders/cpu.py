"""Convolutions on a CPU, for a machine without a GPU: the paper's two stages in torch, and torch's own convolutions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from cuconv import reference
from cuconv.core.problem import FLOAT_BYTES, ConvProblem
from harness.contenders import base
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared, temporarily

COMPLEX_BYTES = 2 * FLOAT_BYTES


class Contender(base.Contender):
    """Four algorithms on torch's threads, available on every machine."""

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The algorithms two_stage, onednn, native and fft; only onednn may be missing from a build of torch."""
        algorithms = {"two_stage": _two_stage, "onednn": _onednn, "native": _native, "fft": _fft}
        return [Offer("cpu", name, partial(prepare, problem, operands)) for name, prepare in algorithms.items()]


def _require_dense(problem: ConvProblem) -> None:
    if not problem.is_dense:
        raise NotRunnable("unsupported", "stride 1, dilation 1 and one group only")


def _two_stage(problem: ConvProblem, operands: Operands) -> Prepared:
    _require_dense(problem)
    planes = problem.filter_area * problem.n * problem.m * problem.out_pixels
    needed = FLOAT_BYTES * planes if problem.filter_area > 1 else 0  # with a 1x1 filter stage one gives the output
    padding = (problem.pad_h, problem.pad_w)
    return Prepared(lambda: reference.two_stage(operands.input, operands.weight, padding), needed)


def _onednn(problem: ConvProblem, operands: Operands) -> Prepared:
    """oneDNN, called by name: F.conv2d would leave small convolutions to torch's own code."""
    if not torch.backends.mkldnn.is_available():
        raise NotRunnable("unsupported", "this build of torch has no oneDNN")
    g = problem.geometry
    steps = (g["padding"], g["stride"], g["dilation"], g["groups"])

    def call() -> torch.Tensor:
        with _onednn_settings(enabled=True):
            return torch.mkldnn_convolution(operands.input, operands.weight, None, *steps)

    return Prepared(call, 0, "oneDNN's own workspace is not known")


def _native(problem: ConvProblem, operands: Operands) -> Prepared:
    def call() -> torch.Tensor:
        with _onednn_settings(enabled=False):
            return F.conv2d(operands.input, operands.weight, **problem.geometry)

    return Prepared(call, 0, "torch's own workspace is not known")


def _onednn_settings(enabled: bool) -> AbstractContextManager[None]:
    """oneDNN on or off, and in FP32; the settings before are restored at the end."""
    onednn: Any = torch.backends.mkldnn
    return temporarily((onednn, "enabled", enabled), (onednn.conv, "fp32_precision", "ieee"))


def _fft(problem: ConvProblem, operands: Operands) -> Prepared:
    """A correlation as the product of the spectra of the padded input and of the conjugate filter, summed over c."""
    _require_dense(problem)
    height, width = problem.h + 2 * problem.pad_h, problem.w + 2 * problem.pad_w
    maps = problem.n * problem.c + problem.m * problem.c + problem.n * problem.m
    needed = COMPLEX_BYTES * maps * height * (width // 2 + 1)
    pads = (problem.pad_w, problem.pad_w, problem.pad_h, problem.pad_h)

    def call() -> torch.Tensor:
        inputs = torch.fft.rfft2(F.pad(operands.input, pads))
        filters = torch.fft.rfft2(operands.weight, s=(height, width)).conj()
        outputs = torch.fft.irfft2(torch.einsum("nchw,mchw->nmhw", inputs, filters), s=(height, width))
        # The circular convolution wraps around in the last rows and columns only.
        return outputs[:, :, : problem.out_h, : problem.out_w].contiguous()

    return Prepared(call, needed)
