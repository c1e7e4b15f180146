"""Models converted ahead of time: convolutions by cuConv, with batch norm, residual and ReLU folded into them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cuconv.background import waiting
from cuconv.device import device_spec
from cuconv.nn import comparison
from cuconv.nn.comparison import Inputs, Truth
from cuconv.nn.modules import LAYERS, become, hooked, patched, why_not
from cuconv.nn.operator import PLAIN, check_precision, is_supported, recorded
from cuconv.nn.program import computed_by_torch
from cuconv.nn.report import Converted, Report
from cuconv.nn.surroundings import surroundings
from cuconv.nn.watched import unwatch
from cuconv.precompile import computed, load_for_other_sizes, precompile_calls
from cuconv.problem import FP32

Progress = Callable[[int, int], object]


class ConversionError(ValueError):
    """A model that cannot be converted; the message says why, and names the layer where that is one layer's fault."""


def convert(
    model: nn.Module, example: Any, *, precision: str = FP32, progress: Progress | None = None
) -> tuple[nn.Module, Report]:
    """A copy of a model in eval mode whose layers are cuConv's, and a report of what was done with each.

    The weights of the copy are constant: it is for inference, and its parameters require no gradient. Later changes of
    the original's weights do not reach it; `copy.refresh(original)` takes them over, and so does
    `copy.load_state_dict`, since its state is the original's.

    Layers are convolutions, and fully connected layers where they get at most 32 rows. torch.export captures the model
    by its call on the example. A batch norm, an addition and a ReLU that follow a convolution are then folded into it,
    and a ReLU that follows a fully connected layer, if nothing else uses what lies between. Calls that the capture does
    not stand for run the model's own code with cuConv's layers in it, and so does a model that cannot be captured.
    docs/torch.md lists those calls.

    Both models are compared on the example. A capture is also compared on other data and with one more image, where
    torch computes its layers. A capture that differs is dropped, and the report says so. A model is not compared if two
    calls of its own differ.

    model      is not changed
    example    the arguments of a call: a tensor, a tuple, or a dictionary by name. On a GPU, the kernels for its sizes
               are compiled now, side by side. Kernels for 0.5, 0.75, 1.5, 2 and 3 times the height and width are
               loaded too, if they ship or are in the compile cache
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32
    progress   called with the number of kernels compiled and the number of all

    Raises ConversionError, a ValueError, for a model in training mode, for one that cannot be copied or called with the
    example, for one whose layers differ as cuConv's, and in a dispatch mode; ValueError for an unknown precision;
    TypeError for a model that is no module.
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
        gc.collect()  # what the capture leaves; otherwise Python collects it during some later forward, for 0.2 s
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
        self._gradients = (False, True)  # of the calls with the example: whether they could be recorded
        self._report = Report()

    def run(self) -> tuple[nn.Module, Report]:
        """The converted model and the report."""
        from cuconv.nn.converted import converted  # here, since capturing takes half a second to import

        expected = self._expected()
        copied = _copied(self._model).requires_grad_(False)
        capture, rows = self._captured(copied)
        layers = _replace_layers(copied, self._precision)
        self._report.rows = rows if capture is not None else layers
        result = converted(copied, capture)
        self._precompile(result)
        if expected is None:
            return result, self._report
        if capture is not None and (words := self._layers_differ(result, expected)):
            self._drop_capture(result, f"the model's code differs with subclasses of its modules: {words}", layers)
        if not self._report.captured and (words := self._layers_differ(result, expected)):
            raise ConversionError(f"the converted model differs: {words}{self._first_wrong_layer(result)}")
        if self._report.captured and (words := self._capture_differs(result, expected)):
            self._drop_capture(result, f"the captured model differs: {words}", layers)
        if self._report.captured and capture.changes.ended:
            self._drop_capture(result, "the model changes its modules", layers)
        if self._report.captured:
            self._report.packed_bytes = sum(layer.packed_bytes for layer in capture.program.layers.values())
        return result, self._report

    def _expected(self) -> list[Any] | None:
        """The results of two calls with the example; None, told in the report, where they are not always the same."""
        model = self._truth.model
        before, state = comparison.attributes(model), _state_of(model)
        changed: list[str] = []
        expected = self._outputs(model, changed)
        after, now = comparison.attributes(model), model.state_dict()
        changed += comparison.changes(before, after)
        changed += [name for name, tensor in state.items() if name in now and not _same(tensor, now[name])]
        if changed:
            self._not_captured(f"a call changes {changed[0]}")
        elif words := self._outputs_differ(expected[1:], expected[:1]):
            self._not_captured(f"two calls with the same input differ: {words}")
        elif comparison.draws(_copied(self._model), self._inputs.new()):
            self._not_captured("a call draws random numbers of Python or NumPy")
        if not self._report.captured:
            self._truth = Truth(_copied(self._model))
            if words := self._outputs_differ(self._outputs(_copied(self._model)), expected):
                self._report.why_not_compared = f"two calls with the same input and random numbers differ: {words}"
                return None
        return expected

    def _outputs(self, model: nn.Module, changed: list[str] | None = None) -> list[Any]:
        """The results of two calls with the example, the second one with gradients enabled if the model allows it.

        changed: gets names of what a call changes in its arguments, and the second call outside of the model's modules.
        """
        results: list[Any] = []
        changed = [] if changed is None else changed
        for gradients in self._gradients:
            inputs = self._inputs.new()
            given, before = comparison.arguments(inputs), surroundings(model) if results else {}
            try:
                results.append(comparison.call(model, inputs, gradients))
            except Exception as error:
                if results and self._gradients[1]:  # such as for an argument out=; the model may have changed before
                    self._gradients = (False, False)
                    return self._outputs(_copied(self._model), changed)
                words = comparison.first_line(error)
                raise ConversionError(f"the model cannot be called with the example: {words}") from error
            if comparison.arguments(inputs) != given:
                changed.append("its arguments")
            if len(results) > 1:  # the first call may have filled caches
                changed += comparison.changes(before, surroundings(model))
        return results

    def _outputs_differ(self, ours: list[Any], theirs: list[Any]) -> str:
        pairs = zip(ours, theirs, strict=True)
        return next(filter(None, (comparison.difference(our, their, self._precision) for our, their in pairs)), "")

    def _captured(self, copied: nn.Module) -> tuple[Any, list[Converted]]:
        """The capture of a model, and what became of each layer; None, told in the report, where there is none."""
        from cuconv.nn.capture import capture
        from cuconv.nn.converted import Capture
        from cuconv.nn.graph import Rewriter
        from cuconv.nn.questions import CaptureError

        if self._report.captured and (reason := _why_not_captured(copied)):
            self._not_captured(reason)
        if not self._report.captured:
            return None, []
        try:
            found = capture(_copied(copied), *self._inputs.new())
            rewriter = Rewriter(found, copied, self._precision)
            program = rewriter.run()
        except CaptureError as error:
            self._not_captured(str(error))
            return None, []
        modules = list(copied.modules())
        return Capture(program, found, modules), rewriter.rows

    def _not_captured(self, reason: str) -> None:
        if self._report.captured:
            self._report.captured, self._report.why_not_captured = False, reason

    def _drop_capture(self, model: nn.Module, reason: str, layers: list[Converted]) -> None:
        unwatch(model)
        model.__dict__["_capture"] = None
        self._not_captured(reason)
        self._report.rows = layers

    def _layers_differ(self, model: nn.Module, expected: list[Any]) -> str:
        """How the model without its capture, layer by layer, differs from what is expected, in words."""
        trial = model if self._report.captured else copy.deepcopy(model)  # a call may change what is not captured
        capture, trial.__dict__["_capture"] = trial.__dict__["_capture"], None
        try:
            return self._differs(trial, self._inputs.new, expected, self._precision)
        finally:
            trial.__dict__["_capture"] = capture

    def _capture_differs(self, model: nn.Module, expected: list[Any]) -> str:
        """How the captured model differs from the model, on the example and on inputs made of it."""
        if words := self._differs(model, self._inputs.new, expected, self._precision):
            return words
        for change in (comparison.another, comparison.larger_batch):
            inputs = partial(self._inputs.new, change)
            capture = model.__dict__["_capture"]
            if capture is None or capture.leaves(*inputs()) is None:
                continue  # they would run the model's own code, which may change the model
            try:
                wanted = comparison.call(self._truth.model, inputs())
            except Exception:  # the model does not take such inputs
                continue
            with computed_by_torch():
                if words := self._differs(model, inputs, [wanted], FP32):
                    return words
        return ""

    def _differs(self, model: nn.Module, inputs: Callable[[], Any], expected: list[Any], precision: str) -> str:
        """How calls of a model differ from what is expected, in words.

        precision: in which the model computes.
        """
        for wanted, gradients in zip(expected, self._gradients, strict=False):
            try:
                ours = comparison.call(model, inputs(), gradients)
            except Exception as error:
                return f"it raises {type(error).__name__}: {comparison.first_line(error)}"
            judges = partial(self._truth.judges, inputs, precision)
            if words := comparison.difference(ours, wanted, precision, judges):
                return words
        return ""

    def _first_wrong_layer(self, model: nn.Module) -> str:
        """The first layer whose output differs from that of the model's own layer, in words."""
        outputs: dict[str, Any] = {}
        theirs = dict(self._truth.model.named_modules())

        def hook_of(name: str) -> Any:
            def compare(module: Any, arguments: Any, output: Any) -> None:
                wanted = theirs[name](*arguments)
                outputs.setdefault(name, comparison.difference(output, wanted, self._precision))

            return compare

        layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LAYERS)]
        handles = [module.register_forward_hook(hook_of(name)) for name, module in layers]
        try:
            comparison.call(model, self._inputs.new())
        except Exception:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return next((f", first at layer {name}" for name, words in outputs.items() if words), "")

    def _precompile(self, model: nn.Module) -> None:
        """Compile the kernels of a call with the example, which runs on tensors without data."""
        tensors = self._inputs.tensors
        if not tensors or not all(map(is_supported, tensors)):
            return
        capture = model.__dict__["_capture"]
        try:
            with recorded() as calls, FakeTensorMode(allow_non_fake_inputs=True) as mode:
                inputs = pytree.tree_map_only(Tensor, mode.from_tensor, self._inputs.new())
                if capture is None:
                    copy.deepcopy(model)(*inputs[0], **inputs[1])  # a call may change what is not captured
                else:
                    capture.program.run(pytree.tree_leaves(inputs))
        except Exception as error:  # the model's own code may need data; it may raise anything
            self._report.why_not_precompiled = comparison.first_line(error)
        device, prepared = tensors[0].device.index, capture is not None
        ours = computed(calls, device_spec(device))
        precompile_calls(ours, device, prepared=prepared, progress=self._progress)
        load_for_other_sizes(ours, device, prepared)


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model; ConversionError where torch cannot copy it."""
    results = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    memo = {id(value): value.detach().clone() for value in results if not value.is_leaf}  # torch copies leaves alone
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # modules define how they are copied
        raise ConversionError(f"the model cannot be copied: {comparison.first_line(error)}") from error


def _why_not_captured(model: nn.Module) -> str:
    """Why a model is not captured although torch.export might: its graph would lose something."""
    for name, module in model.named_modules():
        where = name or "the model"
        if hooked(module):
            return f"{where} has hooks"
        if attribute := patched(module):
            return f"the {attribute} of {where} is not its class's own"
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and type(tensor) not in PLAIN:
                return f"{key} of {where} is a {type(tensor).__name__}"
    return ""


def _replace_layers(model: nn.Module, precision: str) -> list[Converted]:
    """Make the layers of a model cuConv's, and tell what became of each."""
    rows: list[Converted] = []
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, LAYERS):
            continue
        reason = why_not(module)
        rows.append(Converted(name, reason=reason, kind="linear" if isinstance(module, nn.Linear) else "conv"))
        if not reason:
            become(module, precision)
    return rows


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the plain tensors of a model's state, by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if type(tensor) in PLAIN}


def _same(one: Tensor, other: Any) -> bool:
    """Whether a tensor has the same numbers as before; NaN is the same as NaN."""
    if not isinstance(other, Tensor):
        return False
    before, after = (tensor.to_dense().nan_to_num() for tensor in (one, other))
    return torch.equal(before, after)
