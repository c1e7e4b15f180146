"""Models converted ahead of time: convolutions by cuConv, with batch norm, residual and ReLU folded into them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cuconv.nn.graph import Rewriter
from cuconv.nn.modules import CONVOLUTIONS, hooked, module_for, why_not
from cuconv.nn.operator import check_precision, recorded
from cuconv.nn.report import Converted, Report
from cuconv.precompile import precompile_calls
from cuconv.problem import FP32


def convert(
    model: nn.Module,
    *,
    precision: str = FP32,
    example: Tensor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[nn.Module, Report]:
    """A copy of a model in eval mode whose layers are cuConv's, and a report of what was done with each.

    Layers are convolutions, and fully connected layers where they get at most 32 rows. Where torch.fx traces the model,
    a BatchNorm2d, an addition and a ReLU that follow a convolution are folded into it, and a ReLU that follows a fully
    connected layer, if nothing else uses what lies between; the copy is a torch.fx.GraphModule, without the model's own
    methods. Where it does not, or where modules have hooks, layers are replaced one by one, and nothing is folded.
    Everything else stays as it is. The model itself is not changed.

    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32
    example    an input of the model on a GPU: the kernels for its size are compiled now, side by side, instead of at
               the first forward
    progress   called with the number of kernels compiled and the number of all

    Raises ValueError for a model in training mode, for one that cannot be copied, and for an unknown precision.
    """
    check_precision(precision)
    if model.training:
        raise ValueError("the model is in training mode, where batch norm cannot be folded: call model.eval() first")
    report = Report()
    traced = _traced(model, report)
    if traced is None:
        converted = _replace_modules(_copied(model), precision, report)
    else:
        converted = Rewriter(traced, precision, report).run()
    training = {name: module.training for name, module in model.named_modules()}
    for name, module in converted.named_modules():
        module.training = training.get(name, False)
    if example is not None and example.is_cuda:
        _precompile(converted, example, progress, report)
    return converted, report


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model; ValueError where torch cannot copy it."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # modules define how they are copied
        raise ValueError(f"the model cannot be copied: {_first_line(error)}") from error


def _traced(model: nn.Module, report: Report) -> fx.GraphModule | None:
    """A copy of a model as a graph; None, told in the report, where torch.fx cannot trace it or would lose hooks."""
    with_hooks = next((name for name, module in model.named_modules() if hooked(module)), None)
    if with_hooks is not None:
        report.traced, report.why_not_traced = False, f"{with_hooks or 'the model'} has hooks"
        return None
    copied = _copied(model)
    try:
        return fx.symbolic_trace(copied)
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        report.traced, report.why_not_traced = False, _first_line(error)
        return None


def _first_line(error: Exception) -> str:
    """What an exception says, on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _precompile(
    model: nn.Module, example: Tensor, progress: Callable[[int, int], object] | None, report: Report
) -> None:
    """Compile the kernels of a forward of the example, which runs on tensors without data."""
    try:
        with torch.no_grad(), recorded() as calls, FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(mode.from_tensor(example))
    except Exception as error:  # the model's own code may need data; it may raise anything
        report.why_not_precompiled = _first_line(error)
    precompile_calls(calls, example.device.index, prepared=True, progress=progress)


def _replace_modules(model: nn.Module, precision: str, report: Report, name: str = "") -> nn.Module:
    """The same model with its layers replaced by cuConv's. Nothing is folded: what calls them is not known."""
    if isinstance(model, (*CONVOLUTIONS, nn.Linear)):
        if reason := why_not(model):
            report.rows.append(Converted(name, reason=reason))
            return model
        assert isinstance(model, (nn.Conv2d, nn.Linear))
        report.rows.append(Converted(name, kind="conv" if isinstance(model, nn.Conv2d) else "linear"))
        return module_for(model, False, precision)
    for child, module in model.named_children():
        setattr(model, child, _replace_modules(module, precision, report, f"{name}.{child}" if name else child))
    return model
