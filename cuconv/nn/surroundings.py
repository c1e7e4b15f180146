"""The surroundings of a model: global variables, class attributes, closures and defaults that its code names.

A captured graph writes to none of them, so a model whose calls change one is not captured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from cuconv.nn.comparison import is_symbolic, state_of

# Objects that call a function, and the attribute that it is.
METHODS = (MethodType, staticmethod, classmethod)
WRAPPERS = ((METHODS, "__func__"), (property, "fget"), (type(cache(len)), "__wrapped__"))
# What torch.export puts tensors without data in, and takes them out again.
OWN = ("_parameters", "_buffers", "_modules")
OTHERS = {"torch", "cuconv", "numpy", *sys.stdlib_module_names}  # packages whose code and classes are not looked into


def surroundings(model: nn.Module) -> dict[str, Any]:
    """The state of each object outside of a model's modules that their code names, to find out what a call changes."""
    found: dict[str, Any] = {}
    for name, value in _named(model):
        found[name if name not in found else f"{name} ({len(found)})"] = state_of(value)
    return found


def symbolic(model: nn.Module) -> str:
    """The name of what holds sizes or tensors of a capture, among a model's attributes and surroundings; "" without."""
    attributes = (
        (name, value) for module in model.modules() for name, value in vars(module).items() if name not in OWN
    )
    return next((name for name, value in (*attributes, *_named(model)) if is_symbolic(value)), "")


def _named(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Each object outside of a model's modules that has a state and that their code names."""
    seen: set[int] = set()
    values: list[tuple[str, Any]] = [(type(module).__qualname__, type(module)) for module in model.modules()]
    values += [(f"{key} of a module", value) for module in model.modules() for key, value in vars(module).items()
               if isinstance(value, FunctionType | MethodType | partial)]  # fmt: skip
    while values:
        name, value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        try:
            inside = _inside(value)
        except Exception:  # a proxy of something that is not there
            continue
        if inside is None:
            yield name, value
        else:
            values += inside


def _inside(value: Any) -> list[tuple[str, Any]] | None:
    """The objects that a class or a function names, with their names; None for an object that has a state itself."""
    if isinstance(value, partial):
        return [("a partial function", one) for one in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, type):
        return [] if _is_of_others(value) else list(_of_class(value))
    if isinstance(value, FunctionType):
        return [] if _is_of_others(value) else list(_of_function(value))
    for kinds, name in WRAPPERS:
        if isinstance(value, kinds):
            function = getattr(value, name)
            return [(function.__qualname__, function)] if isinstance(function, FunctionType) else []
    return [] if isinstance(value, ModuleType | nn.Module) else None


def _is_of_others(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in OTHERS


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    yield from ((base.__qualname__, base) for base in kind.__bases__)
    yield from (
        (f"{kind.__qualname__}.{name}", value)
        for name, value in vars(kind).items()
        if not name.startswith("__") or isinstance(value, FunctionType)
    )


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with suppress(ValueError):  # nothing is in it yet
            yield f"{function.__qualname__}.{name}", cell.cell_contents
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default of {function.__qualname__}", default
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in OTHERS:
            yield from ((f"{name}.{key}", vars(value)[key]) for key in names & vars(value).keys())


def _names(code: CodeType) -> Iterator[str]:
    """The names of global variables and attributes in some code and in the functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
