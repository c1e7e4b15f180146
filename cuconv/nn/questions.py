"""The questions that a model's code asks while torch.export runs it: a graph stands for calls with the same answers.

Sizes are symbols in such a run, and questions about them are conditions that later calls must meet. A question whose
answer does not follow from sizes makes the capture fail. So does an exception of torch, or of
arithmetic with sizes, that the code catches: the graph has only what the code did after it.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import sympy
import torch
from sympy import preorder_traversal
from sympy.logic.boolalg import BooleanAtom
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

TORCH = str(Path(torch.__file__).parent) + "/"
CUCONV = str(Path(__file__).parents[1]) + "/"
SYMBOLIC = ("fx/", "utils/_sympy/")  # of torch: the arithmetic of symbols, whoever asks for it
# Parts of torch that compute the strides and the data type of a result, and torch.export. Everything else, such as
# torch.nn, counts as the model's code: the graph has only the branch taken. So does _meta_registrations.py: some of its
# shapes, such as those of pooling with ceil_mode, hold for some sizes only.
KERNELS = (
    "_subclasses/", "_refs/", "_prims/", "_prims_common/", "_decomp/", "_ops.py", "_library/", "_export/", "export/",
    "_functorch/", "_higher_order_ops/", "_dynamo/", "_compile.py", "_guards.py", "utils/_stats.py",
)  # fmt: skip
# What may differ between calls of the same sizes, or is of the data that a capture does not have.
UNKNOWN = (torch.is_inference,)
UNKNOWN_OF_TENSORS = (
    "is_inference", "storage_offset", "untyped_storage", "data_ptr", "numpy", "__array__", "_is_view", "_base",
    "_version",
)  # fmt: skip
UNCACHED = "/einops/"  # it computes by itself what it cannot find in a cache
MODES = (torch.is_grad_enabled, torch.is_inference_mode_enabled)
# What is true of a capture alone; a model that asks gets the answer of its other calls.
FALSE = (torch.compiler.is_compiling, torch.compiler.is_exporting)
ARITHMETIC = ("truediv", "floordiv", "mod", "pow", "lshift", "rshift")  # which raises for some sizes
MAX_TERMS = 400  # of an expression of sizes: beyond, its arithmetic takes minutes


class CaptureError(Exception):
    """A model whose forward is no graph; the message says why."""


class TooComplex(CaptureError):
    """Sizes in the model are too long expressions of the input's."""


class Asked:
    """Questions of a model's code in one thread. Its methods make functions that listen, of those that they replace.

    answers   questions about sizes, with their answers
    modes     questions about modes of torch, with their answers
    failures  exceptions that the model's code may have caught: of questions without an answer, of torch's functions, of
              arithmetic with sizes
    """

    def __init__(self) -> None:
        self.answers: list[tuple[Any, Any]] = []
        self.modes: dict[Callable[[], bool], bool] = {}
        self.failures: list[Exception] = []
        self._known: set[Any] = set()
        self._thread = threading.get_ident()

    def _is_models(self, frame: Any) -> bool:
        """Whether a frame is of the model's own code."""
        return threading.get_ident() == self._thread and not frame.f_code.co_filename.startswith((TORCH, CUCONV))

    def _failing(self, error: Exception) -> Exception:
        self.failures.append(error)
        return error

    def evaluating(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """Notes each question about sizes, or that it has no answer; refuses those that are too long."""

        def evaluated(environment: Any, sym_node: Any, *arguments: Any, **keywords: Any) -> Any:
            if threading.get_ident() != self._thread:
                return evaluate(environment, sym_node, *arguments, **keywords)
            question = sym_node.expr
            if question not in self._known:
                self._known.add(question)
                if sum(1 for _ in islice(preorder_traversal(question), MAX_TERMS)) == MAX_TERMS:
                    raise TooComplex(f"sizes in the model are expressions of more than {MAX_TERMS} terms")
            answer = self.followed(sys._getframe(1), evaluate, environment, sym_node, *arguments, **keywords)
            if question.free_symbols and (not _is_truth(answer) or _asked_by_model(sys._getframe(1))):
                self.answers.append((question, answer))
            return answer

        return evaluated

    def followed(self, frame: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The result of a function. An exception that the model's code may catch is noted, and raised again.

        frame: of the caller.
        """
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if threading.get_ident() == self._thread and _asked_by_model(frame):
                self._failing(error)
            raise

    def raising(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the exceptions of an operator of sizes: other sizes may not raise them."""

        def operated(*operands: Any) -> Any:
            return self.followed(sys._getframe(1), operation, *operands)

        return operated

    def contiguity(self, is_contiguous: Callable[..., bool]) -> Callable[..., bool]:
        """Notes whether a tensor is contiguous, about which torch asks at the first call alone."""

        def asked_for(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
            answer = is_contiguous(tensor, memory_format=memory_format)
            if threading.get_ident() == self._thread and _asked_by_model(sys._getframe(1)):
                question = _is_contiguous(tensor, memory_format)
                if getattr(question, "free_symbols", None):
                    self.answers.append((question, sympy.true if answer else sympy.false))
            return answer

        return asked_for

    def text_of(self, value_of: type) -> Callable[..., Any]:
        """Text of a size is that of the number, which evaluates it."""

        def of(symbol: Callable[[Any], str]) -> Callable[[Any], str]:
            def text(size: Any) -> str:
                frame = sys._getframe(1)
                return repr(value_of(size)) if self._is_models(frame) and not _is_message(frame) else symbol(size)

            return text

        return of

    def hashing(self, hash_of: Callable[[Any], int]) -> Callable[[Any], int]:
        """Notes that a size has no hash."""

        def hashed(size: Any) -> int:
            try:
                return hash_of(size)
            except TypeError as error:
                frame = sys._getframe(1)
                if self._is_models(frame) and UNCACHED not in frame.f_code.co_filename:
                    self._failing(error)
                raise

        return hashed

    def refusing(self, name: str) -> Callable[..., Any]:
        """Refuses an answer to the model's code."""

        def of(answer: Callable[..., Any]) -> Callable[..., Any]:
            def refused(*arguments: Any, **keywords: Any) -> Any:
                if self._is_models(sys._getframe(1)):
                    raise self._failing(CaptureError(f"the model asks for {name}"))
                return answer(*arguments, **keywords)

            return refused

        return of

    def noting(self, answer: Callable[[], bool]) -> Callable[[], bool]:
        """Notes a mode."""

        def noted() -> bool:
            if self._is_models(sys._getframe(1)):
                self.modes[answer] = answer()
            return answer()

        return noted

    def denying(self, answer: Callable[[], bool]) -> Callable[[], bool]:
        """Denies what is true of a capture alone."""

        def denied() -> bool:
            frame: Any = sys._getframe(1)
            while frame.f_code.co_name == "is_compiling" and frame.f_code.co_filename.startswith(TORCH):
                frame = frame.f_back  # older names of the same question
            return answer() and not self._is_models(frame)

        return denied


class _Functions(TorchFunctionMode):
    """Notes exceptions of the functions of torch that the model's code calls."""

    def __init__(self, found: Asked):
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._found.followed(sys._getframe(1), func, *args, **(kwargs or {}))


@contextmanager
def asked() -> Iterator[Asked]:
    """Listen to what the model's own code asks in this thread.

    torch's kernels ask many more questions about sizes when they compute strides. Those are no conditions: the graph
    has the operators themselves, which ask again when they run. Questions that are answered by a number always count:
    the graph keeps the number, such as that of the parts of a split. So do sizes that become text, such as the key of a
    cache, except in a message of torch._assert.
    """
    found = Asked()
    with ExitStack() as stack:
        _patch(stack, ShapeEnv, "evaluate_sym_node", found.evaluating)
        _patch(stack, Tensor, "is_contiguous", found.contiguity)
        for symbolic, value_of in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
            _patch(stack, symbolic, "__repr__", found.text_of(value_of))
            for name in (f"__{side}{name}__" for name in ARITHMETIC for side in ("", "r")):
                if hasattr(symbolic, name):
                    _patch(stack, symbolic, name, found.raising)
        _patch(stack, torch.SymInt, "__hash__", found.hashing)
        for name in UNKNOWN_OF_TENSORS:
            _patch(stack, Tensor, name, found.refusing(name))
        makers: dict[Any, Callable[..., Any]] = {function: found.refusing(function.__name__) for function in UNKNOWN}
        makers |= dict.fromkeys(MODES, found.noting) | dict.fromkeys(FALSE, found.denying)
        _patch_everywhere(stack, makers)
        stack.enter_context(_Functions(found))
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


def _patch(stack: ExitStack, owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Replace a function or property by what is made of it, until a stack is left.

    Tensor inherits its methods, and must have none of its own afterwards.
    """
    before = getattr(owner, name)
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, make(before) if callable(before) else property(make(before.__get__)))


def _patch_everywhere(stack: ExitStack, makers: dict[Any, Callable[..., Any]]) -> None:
    """Replace functions by what is made of them in each module that has imported them, until a stack is left."""
    for module in list(sys.modules.values()):
        if issubclass(type(module), ModuleType):
            for name, value in list(vars(module).items()):
                if (
                    type(value) in (FunctionType, BuiltinFunctionType) and value in makers
                ):  # others define what `in` does
                    _patch(stack, module, name, makers[value])


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
    """Whether the first frame outside of symbols' arithmetic and function modes is of the model, not of a kernel."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(TORCH):
            return True
        place = path.removeprefix(TORCH)
        name = frame.f_code.co_name
        passes_on = place == "__init__.py" and name.startswith("__")  # of torch.SymInt or SymBool
        passes_on |= name == "__torch_function__"
        if not passes_on and not place.startswith(SYMBOLIC):
            return not place.startswith(KERNELS)
        frame = frame.f_back
    return True
