"""Finds questions in a model's code that torch's guards do not check, while torch's compiler makes a graph of it."""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import Any
from weakref import WeakSet

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import TracingContext

from cuconv.nn.comparison import GRADIENTS, INFERENCE

# Attributes that tell of memory or of writes to it, and those that tell of a mode.
UNGUARDED = frozenset(("untyped_storage", "storage", "data_ptr", "_version", "_base", "_is_view", "__dict__"))
MODES = {"requires_grad": GRADIENTS, "is_inference": INFERENCE, "is_inference_mode_enabled": INFERENCE}
TORCHS_OWN = frozenset(
    ("_parameters", "_buffers", "_modules", "_global_forward_hooks", "_global_forward_pre_hooks",
     "_global_backward_hooks", "_global_backward_pre_hooks")
)  # fmt: skip
CONSTRUCTORS = frozenset(("__new__", "__init__", "__post_init__"))

_asking_for_gradients: WeakSet[TracingContext] = WeakSet()  # traces in which torch.is_grad_enabled was called


def code() -> list[CodeType]:
    """The code that the compiler has read for a graph: that of the graph's own function, and of those that it calls."""
    return TracingContext.get().traced_code


def what_no_guard_checks() -> str:
    """Why there can be no graph, for code that asks what no guard checks; "" for other code."""
    asked = UNGUARDED & _names()
    return f"the model's code asks for {min(asked)}, which no guard of torch checks" if asked else ""


def modes() -> set[str]:
    """The modes of torch that the code asks for."""
    by_name = {MODES[name] for name in MODES.keys() & _names()}
    return by_name | ({GRADIENTS} if TracingContext.get() in _asking_for_gradients else set())


def guard_empty_dictionaries() -> None:
    """Guard the length of each empty dictionary that the code has read.

    torch guards what `if d:`, `len(d)` and the like ask, but not `bool(d)`, `any(d)`, `d | {}` or `str(d)`. The
    dictionaries that torch.nn.Module uses itself (TORCHS_OWN) get no guard unless the model's own code names them.
    """
    torchs = TORCHS_OWN - _names()
    for source, value in InstructionTranslator.current_tx().output.variable_tracker_cache.items():
        if getattr(source, "member", "") in torchs or not value.is_realized():
            continue
        if isinstance(found := value.realize(), ConstDictVariable) and not found.original_items:
            install_guard(source.make_guard(GuardBuilder.SEQUENCE_LENGTH))


@cache
def watch_gradient_mode() -> None:
    """Let torch's compiler note where it reads a call of torch.is_grad_enabled.

    The name alone says little: layers of transformers have it in a branch for training.
    """
    handlers = TorchInGraphFunctionVariable._get_handlers()
    torchs = handlers[torch.is_grad_enabled]

    def noting(*arguments: Any) -> Any:
        _asking_for_gradients.add(TracingContext.get())
        return torchs(*arguments)

    handlers[torch.is_grad_enabled] = noting


def _names() -> set[str]:
    """The names in the model's own code, without `__dict__` where it makes an object, which no later call changes."""
    found: set[str] = set()
    for one in code():
        if "/torch/" not in one.co_filename:
            is_made = not CONSTRUCTORS.isdisjoint(one.co_qualname.split("."))
            found.update(set(one.co_names) - ({"__dict__"} if is_made else set()))
    return found
