"""A converted model: the model with cuConv's layers, and the program that stands for its forward where it may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cuconv.nn.capture import Captured, share_memory
from cuconv.nn.operator import autocasts, is_differentiated
from cuconv.nn.program import Program
from cuconv.nn.watched import Changes, Watched, base_of, watch

_requires_grad = attrgetter("requires_grad")


class Capture:
    """The program of a model, and all that says whether it stands for a call."""

    def __init__(self, program: Program, captured: Captured, modules: list[nn.Module]):
        """modules: those of the model."""
        self.program, self._conditions = program, captured.conditions
        self._in_spec, self._out_spec = captured.in_spec, captured.out_spec
        self._are_last = captured.are_last if any(captured.are_last) else []
        self.changes = Changes()
        self._modules = modules
        self._parameters: list[nn.Parameter] = []
        self._tensors: list[Tensor] = []  # of the model, but for those of inference mode, which have no version
        self._ties: list[int] = []  # a number for each name of a tensor, the same for names of the same one
        self._training = [module.training for module in modules]
        self._is_one_tensor = self._in_spec == pytree.tree_structure(((torch.empty(0),), {}))
        self._returns_one_tensor = self._out_spec.is_leaf()

    def __getstate__(self) -> dict[str, Any]:
        """Structures as objects that have them, since torch's descriptions of structures warn when they are pickled."""
        specs = (self._in_spec, self._out_spec)
        objects = [pytree.tree_unflatten(range(spec.num_leaves), spec) for spec in specs]
        return {**self.__dict__, "_in_spec": objects[0], "_out_spec": objects[1], "_parameters": [], "_tensors": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._in_spec, self._out_spec = map(pytree.tree_structure, (state["_in_spec"], state["_out_spec"]))

    def leaves(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any] | None:
        """The flattened arguments of a call that the program stands for; None for other calls.

        Other calls have other kinds of arguments, or sizes that the model treats in another way; their arguments share
        memory, or need a gradient; or they run under a tool of torch that must see the model's own operators.
        """
        if self._is_one_tensor and len(arguments) == 1 and not keywords and isinstance(arguments[0], Tensor):
            leaves: list[Any] = [arguments[0]]
        else:
            leaves, spec = pytree.tree_flatten((arguments, keywords))
            if spec != self._in_spec:
                return None
        if torch._C._get_tracing_state() is not None or is_differentiated() or _is_in_mode():
            return None
        if _global_forward_hooks or _global_forward_pre_hooks:
            return None
        if any(autocasts(leaf) for leaf in leaves if isinstance(leaf, Tensor)):
            return None
        if not self._conditions.hold(leaves) or (self.changes.moded and self._has_another_mode()):
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(map(_requires_grad, tensors)) or (len(tensors) > 1 and share_memory(tensors)):
            return None
        if torch.is_grad_enabled() and any(map(_requires_grad, self._parameters)):
            return None
        return leaves

    def bind(self, tensors: dict[str, Tensor]) -> None:
        """Use the tensors of the model as they are now; they are given by all of their names.

        The capture ends where a tensor that had several names is not the same under all of them any more: the program
        knows it by one.
        """
        numbers: dict[int, int] = {}
        ties = [numbers.setdefault(id(tensor), len(numbers)) for tensor in tensors.values()]
        self._ties = self._ties or ties
        if ties != self._ties:
            self.changes.ended = True
            return
        self.program.bind(tensors.__getitem__)
        self._parameters = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
        self._tensors = [tensor for tensor in tensors.values() if not tensor.is_inference()]
        self.changes.stale = False

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """A call of the model's own code, which may write to tensors that the program has made others of."""
        before = [tensor._version for tensor in self._tensors]
        try:
            yield
        finally:
            self.changes.stale |= before != [tensor._version for tensor in self._tensors]

    def _has_another_mode(self) -> bool:
        """Whether a module is not in the mode that it was captured in."""
        self.changes.moded = [module.training for module in self._modules] != self._training
        return self.changes.moded

    def run(self, leaves: list[Any]) -> Any:
        """The model's result for the flattened arguments of a call."""
        outputs = self.program.run(leaves)
        if self._are_last:  # cuConv's results are contiguous, whatever comes in
            outputs = [
                output.contiguous(memory_format=torch.channels_last) if is_last else output
                for output, is_last in zip(outputs, self._are_last, strict=True)
            ]
        return outputs[0] if self._returns_one_tensor else pytree.tree_unflatten(outputs, self._out_spec)


class Converted(Watched):
    """The class that `convert` adds to the class of a model."""

    _capture: Capture | None = None

    def refresh(self, original: nn.Module | None = None) -> None:
        """Take over the weights of the original model, or those that were written to this one in place.

        The original must have the same parameters and buffers as the model that was converted.
        """
        if original is not None:
            state, mine = original.state_dict(), dict(_tensors(self))
            with torch.no_grad():
                for name, tensor in _tensors(original):
                    if name not in state and name in mine:
                        mine[name].copy_(tensor)
            self.load_state_dict(state)  # it refreshes
        else:
            self._bind()

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """torch.nn.Module.load_state_dict; the weights are those of the original model, by the same names."""
        result = super().load_state_dict(*arguments, **options)
        self._bind()
        return result

    def _bind(self) -> None:
        """Let the program use the tensors of this model as they are now."""
        if self._capture is not None:
            self._capture.bind(dict(_tensors(self)))

    def _apply(self, change: Any, recurse: bool = True) -> Converted:
        capture, types = self._capture, [tensor.dtype for _, tensor in _tensors(self)]
        ended = capture is None or capture.changes.ended
        super()._apply(change, recurse)
        if capture is not None and not ended and types == [tensor.dtype for _, tensor in _tensors(self)]:
            capture.changes.ended = False  # all of it moves
            capture.program.move(change)
            self._bind()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._capture is not None:
            watch(self, self._capture.changes)
            self._bind()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if base_of(type(self)) is type(self):  # it was given another class
            return super().__reduce_ex__(protocol)
        state = {name: value for name, value in self.__getstate__().items() if name != "_changes"}
        return _rebuild, (base_of(type(self)),), state


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters, buffers and other tensors of a model under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _is_in_mode() -> bool:
    """Whether a mode of torch sees the operations of this thread, but for the one that only sets a default device."""
    modes = _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    return _get_current_dispatch_mode() is not None or any(type(mode) is not DeviceContext for mode in modes)


def converted(model: nn.Module, capture: Capture | None) -> nn.Module:
    """Make a model a converted one, whose class is one of `Converted` and of the model's own class."""
    for module in model.modules():
        if "_capture" in module.__dict__ and (capture is not None or module is model):
            module.__dict__["_capture"] = None  # of a model in the model, which is not watched for it any more
    model.__class__ = _class_for(base_of(type(model)))
    model.__dict__["_capture"] = capture
    if capture is not None:
        watch(model, capture.changes)
    model._bind()  # type: ignore[operator]
    return model


@cache
def _class_for(base: Any) -> type[nn.Module]:
    """The class of a converted model of a class."""

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        capture: Capture | None = self._capture
        if capture is None or torch.compiler.is_compiling():
            return base.forward(self, *arguments, **keywords)
        if capture.changes.stale and not capture.changes.ended:
            self._bind()
        if capture.changes.ended:
            self.__dict__["_capture"] = None
            return base.forward(self, *arguments, **keywords)
        if (leaves := capture.leaves(arguments, keywords)) is not None:
            return capture.run(leaves)
        with capture.left_out():
            return base.forward(self, *arguments, **keywords)

    attributes = {"forward": wraps(base.forward)(forward), "__module__": base.__module__, "__doc__": base.__doc__}
    attributes |= {"__qualname__": base.__qualname__, "_base": base}
    return type(base.__name__, (Converted, base), attributes)


def _rebuild(base: Any) -> nn.Module:
    """A converted model of a class, without its state, for copies and pickles."""
    kind = _class_for(base)
    return kind.__new__(kind)
