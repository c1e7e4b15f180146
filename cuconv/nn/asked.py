"""Finds questions in a model's code that torch's guards do not check, while torch's compiler makes graphs of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from threading import local
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationNew, VariableTracker
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import TracingContext

from cuconv.nn.comparison import GRADIENTS, INFERENCE

# UNGUARDED: attributes that reveal memory, writes to it, or all attributes of an object. MODES: attributes and
# functions that reveal a mode.
ATTRIBUTES = frozenset(("__dict__", "__dir__", "__getstate__", "__reduce__", "__reduce_ex__"))
UNGUARDED = ATTRIBUTES | {"untyped_storage", "storage", "data_ptr", "_version", "_base", "_is_view"}
MODES = {
    "requires_grad": GRADIENTS, "is_grad_enabled": GRADIENTS,
    "is_inference": INFERENCE, "is_inference_mode_enabled": INFERENCE,
}  # fmt: skip
TORCHS_OWN = frozenset(
    ("_parameters", "_buffers", "_modules", "_global_forward_hooks", "_global_forward_pre_hooks",
     "_global_backward_hooks", "_global_backward_pre_hooks")
)  # fmt: skip
TORCH = os.path.dirname(torch.__file__) + os.sep
POLYFILLS = os.path.join(TORCH, "_dynamo", "polyfills") + os.sep  # stand for functions of Python that a model calls

_names: WeakKeyDictionary[TracingContext, set[str]] = WeakKeyDictionary()  # asked for while a graph is made
_thread = local()  # modes: those that code asks for while this thread compiles


def traced_code() -> list[CodeType]:
    """The code that the compiler has read for a graph: that of the graph's own function, and of those that it calls."""
    return TracingContext.get().traced_code


def what_no_guard_checks() -> str:
    """Why there can be no graph, for code that asks what no guard checks; "" for other code."""
    asked = UNGUARDED & _names.get(TracingContext.get(), set())
    return f"the model's code asks for {min(asked)}, which no guard of torch checks" if asked else ""


@contextmanager
def modes() -> Iterator[set[str]]:
    """Collects the modes of torch that code asks for while this thread compiles it."""
    _watch_the_compiler()
    _thread.modes = set()
    try:
        yield _thread.modes
    finally:
        del _thread.modes


def guard_empty_dictionaries() -> None:
    """Guard the length of each empty dictionary that the code has read.

    torch guards what `if d:`, `len(d)` and the like ask, but not `bool(d)`, `any(d)`, `d | {}` or `str(d)`. The
    dictionaries that torch.nn.Module uses itself (TORCHS_OWN) get no guard unless the model's own code asks for them.
    """
    torchs = TORCHS_OWN - _names.get(TracingContext.get(), set())
    for source, value in InstructionTranslator.current_tx().output.variable_tracker_cache.items():
        if getattr(source, "member", "") in torchs or not value.is_realized():
            continue
        found = value.realize()
        found = getattr(found, "_base_vt", getattr(found, "_dict_vt", None)) or found  # a subclass of dict
        if isinstance(found, ConstDictVariable) and not found.original_items:
            install_guard(source.make_guard(GuardBuilder.SEQUENCE_LENGTH))


@cache
def _watch_the_compiler() -> None:
    """Let torch's compiler note each attribute that code reads, in whatever spelling, and each function that it calls.

    A name in the code would say less: layers of transformers ask for modes in a branch for training.
    """

    def noting(read: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
        @wraps(read)
        def wrapper(variable: Any, tx: Any, *arguments: Any, **keywords: Any) -> Any:
            _note(variable, name_of(variable, *arguments, **keywords), tx)
            return read(variable, tx, *arguments, **keywords)

        return wrapper

    for kind in _kinds(VariableTracker):
        if "var_getattr" in vars(kind):
            kind.var_getattr = noting(kind.var_getattr, lambda _, name: name)  # type: ignore[method-assign]
    read = ConstDictVariable.getitem_const_raise_exception_if_absent

    def guarded(variable: Any, tx: Any, key: Any) -> Any:
        variable.install_dict_contains_guard(tx, [key])  # torch does not guard that a key is not there
        return read(variable, tx, key)

    ConstDictVariable.getitem_const_raise_exception_if_absent = guarded  # type: ignore
    calls = TorchInGraphFunctionVariable
    calls.call_function = noting(  # type: ignore[method-assign]
        calls.call_function, lambda variable, *_: getattr(variable.value, "__name__", "")
    )


def _kinds(kind: type[VariableTracker]) -> set[type[VariableTracker]]:
    return {kind}.union(*(_kinds(one) for one in kind.__subclasses__()))


def _note(variable: VariableTracker, name: str, tx: Any) -> None:
    """Note a name, unless torch's own code asks for it, or the model's for ATTRIBUTES of an object that it has made."""
    while tx.f_code.co_filename.startswith(POLYFILLS) and tx.parent is not None:
        tx = tx.parent
    if tx.f_code.co_filename.startswith(TORCH):
        return
    if name in ATTRIBUTES and isinstance(variable.mutation_type, AttributeMutationNew):
        return
    _names.setdefault(TracingContext.get(), set()).add(name)
    if name in MODES and hasattr(_thread, "modes"):
        _thread.modes.add(MODES[name])
