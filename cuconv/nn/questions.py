"""The questions that a model's code asks while torch.export runs it: a graph stands for calls with the same answers.

Sizes are symbols in such a run, and questions about them are conditions that later calls must meet. A question whose
answer does not follow from sizes makes the capture fail.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import sympy
import torch
from sympy import preorder_traversal
from sympy.logic.boolalg import BooleanAtom
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

TORCH = str(Path(torch.__file__).parent) + "/"
SYMBOLIC = ("fx/", "utils/_sympy/")  # of torch: the arithmetic of symbols, whoever asks for it
# Parts of torch that compute the strides and the data type of a result, and torch.export. Everything else, such as
# torch.nn, counts as the model's code: the graph has only the branch taken. So does _meta_registrations.py: some of its
# shapes, such as those of pooling with ceil_mode, hold for some sizes only.
KERNELS = (
    "_subclasses/", "_refs/", "_prims/", "_prims_common/", "_decomp/", "_ops.py", "_library/", "_export/", "export/",
    "_functorch/", "_higher_order_ops/", "_dynamo/", "_compile.py", "_guards.py", "utils/_stats.py",
)  # fmt: skip
# Functions whose answers may differ between calls of the same sizes.
UNKNOWN = ((torch, "is_inference_mode_enabled"), (Tensor, "is_inference"), (Tensor, "storage_offset"))
MAX_TERMS = 400  # of an expression of sizes: beyond, its arithmetic takes minutes


class CaptureError(Exception):
    """A model whose forward is no graph; the message says why."""


class TooComplex(CaptureError):
    """Sizes in the model are too long expressions of the input's."""


@contextmanager
def asked() -> Iterator[list[tuple[Any, Any]]]:
    """Record each question about sizes that the model's own code asks, with its answer.

    torch's kernels ask many more when they compute strides. Those are no conditions: the graph has the operators
    themselves, which ask again when they run. Questions that are answered by a number always count: the graph keeps
    the number, such as that of the parts of a split. So do sizes that become text, such as the key of a cache, except
    in a message of torch._assert.
    """
    found: list[tuple[Any, Any]] = []
    known: set[Any] = set()
    evaluate, thread = ShapeEnv.evaluate_sym_node, threading.get_ident()

    def evaluated(self: Any, sym_node: Any, *arguments: Any, **keywords: Any) -> Any:
        if threading.get_ident() != thread:
            return evaluate(self, sym_node, *arguments, **keywords)
        question = sym_node.expr
        if question not in known:
            known.add(question)
            if sum(1 for _ in islice(preorder_traversal(question), MAX_TERMS)) == MAX_TERMS:
                raise TooComplex(f"sizes in the model are expressions of more than {MAX_TERMS} terms")
        answer = evaluate(self, sym_node, *arguments, **keywords)
        if question.free_symbols and (not _is_truth(answer) or _asked_by_model(sys._getframe(1))):
            found.append((question, answer))
        return answer

    def is_models(frame: Any) -> bool:
        return threading.get_ident() == thread and not frame.f_code.co_filename.startswith(TORCH)

    def refusing(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def refused(*arguments: Any) -> Any:
            if is_models(sys._getframe(1)):
                raise CaptureError(f"the model asks for {name}")
            return answer(*arguments)

        return refused

    def text_of(value_of: type, symbol: Callable[[Any], str]) -> Callable[[Any], str]:
        def text(self: Any) -> str:
            frame = sys._getframe(1)
            return repr(value_of(self)) if is_models(frame) and not _is_message(frame) else symbol(self)

        return text

    def contiguity(self: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        answer = is_contiguous(self, memory_format=memory_format)
        if threading.get_ident() == thread and _asked_by_model(sys._getframe(1)):
            question = _is_contiguous(self, memory_format)
            if getattr(question, "free_symbols", None):
                found.append((question, sympy.true if answer else sympy.false))
        return answer

    is_contiguous = Tensor.is_contiguous
    with ExitStack() as stack:
        _patch(stack, ShapeEnv, "evaluate_sym_node", evaluated)
        for symbolic, value_of in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
            _patch(stack, symbolic, "__repr__", text_of(value_of, symbolic.__repr__))
        _patch(stack, Tensor, "is_contiguous", contiguity)  # torch asks about sizes at the first call alone
        for owner, name in UNKNOWN:
            _patch(stack, owner, name, refusing(name, getattr(owner, name)))
        yield found


def _is_message(frame: Any) -> bool:
    """Whether a frame is about to make an argument of a call of torch._assert, by the places in its source."""
    begin, end = _place(*list(frame.f_code.co_positions())[frame.f_lasti // 2])
    instructions = [
        (one.opname, one.argval, _place(*one.positions or 4 * [None])) for one in dis.get_instructions(frame.f_code)
    ]
    asserts = {first for _, name, (first, _) in instructions if name == "_assert"}
    calls = [place for kind, _, place in instructions if kind.startswith("CALL")]
    return any(first in asserts and first <= begin and end <= last for first, last in calls)


def _place(line: int | None, last_line: int | None, column: int | None, last_column: int | None) -> Any:
    """Line and column of the first and of the last character of some source; zeros where they are unknown."""
    return (line or 0, column or 0), (last_line or 0, last_column or 0)


def _patch(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until a stack is left; Tensor inherits its methods, and must have none of its own afterwards."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


def _is_contiguous(tensor: Tensor, memory_format: torch.memory_format) -> Any:
    """Whether a tensor is contiguous in a memory format, as an expression of sizes."""
    axes = list(range(tensor.dim()))
    if memory_format != torch.contiguous_format:
        axes.append(axes.pop(1))  # the channels are last
    sizes, strides = expressions(tensor.shape), expressions(tensor.stride())
    contiguous, step = sympy.true, sympy.Integer(1)
    for axis in reversed(axes):
        contiguous &= sympy.Or(sympy.Eq(sizes[axis], 1), sympy.Eq(strides[axis], step))
        step *= sizes[axis]
    return contiguous | sympy.Eq(step, 0)


def expressions(sizes: Iterable[Any]) -> tuple[Any, ...]:
    """Sizes of a tensor without data as numbers and sympy expressions."""
    return tuple(size if isinstance(size, int) else size.node.expr for size in sizes)


def _is_truth(answer: Any) -> bool:
    return isinstance(answer, bool | BooleanAtom)


def _asked_by_model(frame: Any) -> bool:
    """Whether the frame below the arithmetic of symbols is one of the model and not one of torch's kernels."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(TORCH):
            return True
        place = path.removeprefix(TORCH)
        is_method = place == "__init__.py" and frame.f_code.co_name.startswith("__")  # of torch.SymInt or SymBool
        if not is_method and not place.startswith(SYMBOLIC):
            return not place.startswith(KERNELS)
        frame = frame.f_back
    return True
