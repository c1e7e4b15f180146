"""Changes of a converted model after which its capture stands for another model.

Each module of the model gets a subclass of its class, by the same name, and dictionaries that note what is written to
them. So changes cost when they are made, and calls need not look for them. Copies and pickles are of the plain class.
"""

from __future__ import annotations

import copyreg
from functools import cache
from typing import Any

from torch import nn

from cuconv.nn.operator import PLAIN


class Changes:
    """Changes of a model's modules since it was captured.

    ended  whether the capture is one of another model now
    stale  whether tensors of the model are not those that the capture uses
    moded  whether a module was put into training mode or back
    """

    def __init__(self) -> None:
        self.ended = self.stale = self.moded = False


class _Noted(dict[str, Any]):
    """The parameters, buffers or children of a module."""

    changes: Changes

    def __setitem__(self, name: str, value: Any) -> None:
        before = self.get(name)
        super().__setitem__(name, value)
        if before is not value:
            self.changes.stale = True
            self.changes.ended |= not _is_like(before, value)

    def __delitem__(self, name: str) -> None:
        self.changes.ended = True
        super().__delitem__(name)

    def pop(self, *arguments: Any) -> Any:
        """dict.pop."""
        self.changes.ended = True
        return super().pop(*arguments)

    def popitem(self) -> Any:
        """dict.popitem."""
        self.changes.ended = True
        return super().popitem()

    def clear(self) -> None:
        """dict.clear."""
        self.changes.ended = True
        super().clear()

    def update(self, *arguments: Any, **items: Any) -> None:
        """dict.update."""
        self.changes.ended = True
        super().update(*arguments, **items)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())


def _is_like(before: Any, value: Any) -> bool:
    """Whether a tensor may take the place of another one in a capture, which records no gradient for it."""
    if type(before) not in PLAIN or type(value) not in PLAIN or value.requires_grad:
        return False
    return all(getattr(before, what) == getattr(value, what) for what in ("shape", "dtype", "device"))


class Watched(nn.Module):
    """The class that is added to the class of each module of a captured model."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Nothing: a model's class may list its subclasses, or ask for options."""

    def __setattr__(self, name: str, value: Any) -> None:
        changes, before = self.__dict__.get("_changes"), self.__dict__.get(name, Changes)
        super().__setattr__(name, value)
        if changes is not None and value is not before and not _is_noted(self, name):
            if name == "training":
                changes.stale = changes.moded = True  # a call in training mode may change statistics
            else:
                changes.ended = True

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._note("ended")

    def register_forward_hook(self, *arguments: Any, **options: Any) -> Any:
        """torch.nn.Module.register_forward_hook, which ends the capture."""
        self._note("ended")
        return super().register_forward_hook(*arguments, **options)

    def register_forward_pre_hook(self, *arguments: Any, **options: Any) -> Any:
        """torch.nn.Module.register_forward_pre_hook, which ends the capture."""
        self._note("ended")
        return super().register_forward_pre_hook(*arguments, **options)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """torch.nn.Module.requires_grad_; with gradients, the model computes layer by layer from then on."""
        if requires_grad:
            self._note("ended")
        return super().requires_grad_(requires_grad)

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        self._note("ended")
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._note("stale")
        super()._load_from_state_dict(*arguments, **options)

    def _note(self, what: str) -> None:
        if "_changes" in self.__dict__:
            setattr(self.__dict__["_changes"], what, True)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """As an object of the module's own class."""
        found: Any = super().__reduce_ex__(protocol)
        base, (function, arguments, *rest) = base_of(type(self)), found
        if rest and isinstance(rest[0], dict):
            rest[0] = {name: value for name, value in rest[0].items() if name != "_changes"}
        arguments = tuple(base if one is type(self) else one for one in arguments)
        if function is type(self):
            function = base
        elif function is copyreg.__newobj__:  # type: ignore[attr-defined]
            function = _new  # pickle asks for an object of just this class from the other one
        return function, arguments, *rest


def _is_noted(module: nn.Module, name: str) -> bool:
    """Whether an attribute is in one of the dictionaries that note what is written to them."""
    return any(name in module.__dict__[kind] for kind in ("_parameters", "_buffers", "_modules"))


def _new(kind: Any, *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)


def base_of(kind: Any) -> Any:
    """The class of a module before it was watched or converted."""
    return vars(kind).get("_base", kind)


@cache
def _watched(base: Any) -> Any:
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (Watched, base), {**names, "_base": base})


def watch(model: nn.Module, changes: Changes) -> None:
    """Note the changes of a model's modules; the model itself is watched already."""
    for module in model.modules():
        if not isinstance(module, Watched):
            kind: Any = type(module)
            module.__class__ = _watched(kind)
        for name in ("_parameters", "_buffers", "_modules"):
            noted = _Noted(module.__dict__[name])
            noted.changes = changes
            module.__dict__[name] = noted
        module.__dict__["_changes"] = changes


def unwatch(model: nn.Module) -> None:
    """Give the modules below a model their own classes again."""
    for module in list(model.modules())[1:]:
        module.__dict__.pop("_changes", None)
        if isinstance(module, Watched):
            module.__class__ = base_of(type(module))
