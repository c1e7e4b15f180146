"""Models converted ahead of time: convolutions by cuConv, with what follows folded into them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cuconv.core.problem import FP32
from cuconv.device import device_spec
from cuconv.nn import comparison
from cuconv.nn.comparison import GRADIENTS, INFERENCE, Inputs, Truth
from cuconv.nn.frozen import computed_by_torch
from cuconv.nn.modules import LAYERS, why_not_linear
from cuconv.nn.operator import check_precision
from cuconv.nn.report import Converted, Report
from cuconv.precompile import compile_missing, computed, load_for_other_sizes, precompile_calls
from cuconv.runtime.background import waiting

Progress = Callable[[int, int], object]
NOTHING_REPLACED = "none of its layers is cuConv's"


class ConversionError(ValueError):
    """A model that cannot be converted; the message says why, and names the layer where that is one layer's fault."""


def convert(
    model: nn.Module, example: Any, *, precision: str = FP32, progress: Progress | None = None
) -> tuple[nn.Module, Report]:
    """A copy of a model in eval mode whose layers are cuConv's, and a report of what was done with each.

    The weights of the copy are constant: it is for inference, and its parameters require no gradient. Later changes of
    the original's weights do not reach it; `copy.refresh(original)` takes them over, and so does
    `copy.load_state_dict`, since its state is the original's.

    torch's compiler makes graphs of the model's forward by its call on the example, for other sizes and numbers of
    images too: its guards say for which later calls a graph stands. In a graph, convolutions and fully connected layers
    for at most 32 rows are cuConv's. A batch norm, an addition and an activation that follow a convolution are folded
    into it, and a ReLU that follows a fully connected layer, if nothing else uses what lies between. A sum of
    convolutions of the same input is one convolution. Calls for which there is no graph run the model's own code; they
    compile nothing.

    Both models are compared on the example. The graphs are also compared on other data, where torch computes their
    layers. Graphs that differ are dropped, and the report says so.

    model      is not changed
    example    the arguments of a call: a tensor, a tuple, or a dictionary by name. On a GPU, the kernels for its sizes
               are compiled now, side by side. Kernels for 0.5, 0.75, 1.5, 2 and 3 times the height and width are
               loaded too, if they ship or are in the compile cache
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32
    progress   called with the number of kernels compiled and the number of all

    Raises ConversionError, a ValueError, for a model in training mode, for one that cannot be copied or called with the
    example, and in a dispatch mode; ValueError for an unknown precision; TypeError for a model that is no module.
    """
    check_precision(precision)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}: convert takes a torch.nn.Module")
    _check_model(model)
    autocast_off = [torch.autocast(device, enabled=False) for device in ("cuda", "cpu")]
    with torch.inference_mode(False), torch.no_grad(), autocast_off[0], autocast_off[1], waiting():
        inputs = Inputs(example)
        converted_and_report = _Conversion(model, inputs, precision, progress).run()
    if any(tensor.is_cuda for tensor in inputs.tensors):
        gc.collect()  # what torch's compiler leaves; otherwise Python collects it during some later forward, for 0.2 s
    return converted_and_report


def _check_model(model: nn.Module) -> None:
    """Raise ConversionError for a model that is never converted."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ConversionError(
            "the model is a torch.jit.ScriptModule, whose code is fixed: convert the module that it was made of, "
            "or call it in cuconv.nn.enabled()"
        )
    if _get_current_dispatch_mode() is not None or _global_forward_hooks or _global_forward_pre_hooks:
        raise ConversionError("a dispatch mode or a global hook of torch is on: call convert outside of it")
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise ConversionError("a parameter of the model has no size yet: call the model once first")
    if model.training:
        raise ConversionError("the model is in training mode: call model.eval() first")


class _Conversion:
    """One call of `convert`."""

    def __init__(self, model: nn.Module, inputs: Inputs, precision: str, progress: Progress | None):
        self._model = model  # never called, since a call may change it
        self._inputs, self._precision, self._progress = inputs, precision, progress
        self._truth = Truth(_copied(model))
        self._report = Report()
        self._of_the_example: list[Any] = []  # the graphs of the example's call

    def run(self) -> tuple[nn.Module, Report]:
        """The converted model and the report."""
        from cuconv.nn import converted, traced  # here, since torch's compiler takes long to import

        called = _copied(self._model)
        expected = self._expected("", called)
        result = _copied(self._model).requires_grad_(False)
        base: Any = converted.base_of(type(result))
        try:
            result.__class__ = converted.class_for(base)
        except Exception as error:  # a metaclass may refuse
            self._not_captured(f"its class allows no subclass: {comparison.first_line(error)}")
            return result, self._report
        layers = traced.trace(result)
        hooks = converted.has_hooks(called)
        modes = {mode for mode in (GRADIENTS, INFERENCE) if not self._differs_in(mode, expected)}
        for any_batch in (True, False):  # a model may need graphs of their own for one image
            self._report = Report()
            graphs = converted.Graphs(base, self._precision, modes, any_batch, hooks)
            graphs.prepare = self._precompile
            result.__dict__["_graphs"] = graphs
            self._compile(graphs, result)
            if len(graphs) and self._report.why_not_captured != NOTHING_REPLACED:
                self._check_graphs(result, expected)
            if self._report.captured or self._report.why_not_captured == NOTHING_REPLACED:
                break
        if not self._report.captured:
            traced.untrace(layers)
            graphs.drop()
            self._report.rows = _rows(self._report.left, result)
            if comparison.difference(self._of(result), expected, FP32):
                result.__class__ = base  # the model's code differs in a subclass, or with an attribute more
                del result.__dict__["_graphs"]
        graphs.folded = graphs.partly = graphs.own = 0
        graphs.prepare = None  # it refers to all of this
        self._report.graphs = graphs
        return result, self._report

    def _expected(self, mode: str, copied: nn.Module | None = None) -> Any:
        """The result of the model's call with the example, on a copy, such as a given one."""
        try:
            copied = _copied(self._model) if copied is None else copied
            return comparison.call(copied, self._inputs.new(), mode)
        except Exception as error:
            words = comparison.first_line(error)
            raise ConversionError(f"the model cannot be called with the example: {words}") from error

    def _differs_in(self, mode: str, expected: Any) -> bool:
        """Whether the model returns something else in a mode of torch."""
        try:
            return bool(comparison.difference(self._expected(mode), expected, FP32))
        except ConversionError:  # such as for an argument out=
            return True

    def _compile(self, graphs: Any, model: nn.Module) -> None:
        """Make graphs for the example and for another number of images, on a copy that calls may change."""
        from torch._dynamo.utils import counters

        trial, breaks = copy.deepcopy(model), dict(counters["graph_break"])
        try:
            graphs.compile(trial, self._inputs.new)
        except Exception as error:  # the model's own code or torch's compiler may raise
            self._not_captured(comparison.first_line(getattr(error, "inner_exception", error)))
            return
        self._of_the_example = graphs.of_calls()
        names = {id(weight): name for name, layer in _layers(trial) for weight in layer.parameters(recurse=False)}
        self._report.rows = _rows([row for folded in self._of_the_example for row in folded.rows(names)], trial)
        self._report.packed_bytes = sum(folded.packed_bytes for folded in self._of_the_example)
        told = [reason for reason, times in counters["graph_break"].items() if times > breaks.get(reason, 0)]
        self._report.breaks = [next(iter(reason.splitlines()), "") for reason in told]
        if not len(graphs):
            self._not_captured(graphs.refused or "torch's compiler makes no graph of it")
            return
        if not self._report.replaced:
            self._not_captured(NOTHING_REPLACED)
            return
        try:
            graphs.compile(trial, self._other(bool(self._report.breaks)).new)
        except Exception as error:  # the model may take one number of images alone
            self._report.why_one_batch = comparison.first_line(error)
        if self._inputs.has_list_of_images:
            self._report.why_one_batch = "torch's guards fix the length of a list"

    def _other(self, has_breaks: bool) -> Inputs:
        """Inputs with another number of images, which the model takes; after a graph break, of another size, too.

        torch's compiler takes sizes of what follows a graph break for fixed until it meets others.
        """
        if has_breaks:
            other = self._inputs.other_batch(of_another_size=True)
            with suppress(Exception):  # the model may take one size alone
                comparison.call(_copied(self._model), other.new())
                return other
        other = self._inputs.other_batch()
        comparison.call(_copied(self._model), other.new())
        return other

    def _check_graphs(self, model: nn.Module, expected: Any) -> None:
        """Drop graphs that raise an exception, or that differ where the model's own results are repeatable."""
        try:
            words = self._graphs_differ(model, expected)
        except Exception as error:  # torch may raise, such as for lack of memory
            self._not_captured(
                f"its graphs, or their comparison, raise {type(error).__name__}: {comparison.first_line(error)}"
            )
            return
        if words and not (why := self._why_not_repeatable(expected)):
            self._not_captured(f"its graphs differ: {words}")
        elif words:
            self._report.why_not_compared = why

    def _graphs_differ(self, model: nn.Module, expected: Any) -> str:
        """How the converted model differs from the model, on the example and on other data, in words."""
        judges = partial(self._truth.judges, self._inputs.new, self._precision)
        if words := comparison.difference(self._of(model), expected, self._precision, judges):
            return words
        for inputs in (partial(self._inputs.new, comparison.another), self._inputs.other_batch().new):
            try:
                wanted = comparison.call(_copied(self._model), inputs())
            except Exception:  # the model does not take such inputs
                continue
            with computed_by_torch():
                ours = comparison.call(copy.deepcopy(model), inputs())
            if words := comparison.difference(ours, wanted, FP32, partial(self._truth.judges, inputs, FP32)):
                return f"with other inputs, {words}"
        return ""

    def _of(self, model: nn.Module) -> Any:
        """The result of a copy of a model with the example."""
        return comparison.call(copy.deepcopy(model), self._inputs.new())

    def _why_not_repeatable(self, expected: Any) -> str:
        """How the model's own results change from call to call, or with rounding; "" where they do not.

        Models that pick, such as boxes by their scores, may pick others where a score moves by one part in a million.
        """
        nudged = comparison.call(_copied(self._model), self._inputs.new(comparison.nudged))
        for other, what in (
            (self._expected(""), "two calls with the same input and random numbers differ"),
            (nudged, "the model's own results change where its input changes by a millionth"),
        ):
            if difference := comparison.difference(other, expected, self._precision):
                return f"{what}: {difference}"
        return ""

    def _not_captured(self, reason: str) -> None:
        self._report.captured, self._report.why_not_captured = False, reason

    def _precompile(self, folded: Any, inputs: list[Any]) -> None:
        """Compile the kernels of a graph's call side by side, before the call."""
        device = next((one.device for one in inputs if isinstance(one, Tensor) and one.is_cuda), None)
        if device is None:
            return
        try:
            calls = folded.planned_calls(inputs)
        except Exception as error:  # an operation may need data
            self._report.why_not_precompiled = comparison.first_line(error)
            return
        spec, types = device_spec(device.index), {one.dtype for one in inputs if isinstance(one, Tensor)}
        compile_missing(folded.kernels(types, spec.arch))
        ours = computed(calls, spec)
        precompile_calls(ours, device.index, prepared=True, progress=self._progress)
        load_for_other_sizes(ours, device.index, True)


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model; ConversionError where torch cannot copy it."""
    results = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    memo = {id(value): value.detach().clone() for value in results if not value.is_leaf}  # torch copies leaves alone
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:  # modules define how they are copied
        raise ConversionError(f"the model cannot be copied: {comparison.first_line(error)}") from error
    own = {id(module): name for name, module in model.named_modules()}
    if shared := next((own[id(module)] for module in copied.modules() if id(module) in own), None):
        raise ConversionError(f"the model cannot be copied: a copy of {shared} is the same module")
    return copied


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The convolutions and fully connected layers of a model by name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LAYERS)]


def _rows(known: list[Converted], model: nn.Module) -> list[Converted]:
    """Known rows, and one for each layer of a model that has none."""
    names = {row.name for row in known}
    missing = [(name, layer) for name, layer in _layers(model) if name not in names]
    return [*known, *(Converted(name, reason=_why_missing(layer)) for name, layer in missing)]


def _why_missing(layer: nn.Module) -> str:
    """Why no graph has a layer of cuConv's in a layer's place."""
    weight = getattr(layer, "weight", None)  # some layers compute theirs
    why = why_not_linear(weight, layer.bias) if isinstance(layer, nn.Linear) and isinstance(weight, Tensor) else ""
    return why or "no graph has a call of it"
