"""A converted model: calls for which torch's compiler has made a graph run folded, others run the model's own code.

Three judges decide about a call: `Graphs._may_run` and `_has_new_hooks` look at what no guard sees, and torch's guards
at the rest. `cuconv.nn.asked` adds guards to these, and refuses a graph where the code asks what none can check.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from math import copysign
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._C._dynamo.eval_frame import reset_code, set_eval_frame
from torch._dynamo.exc import SkipFrame
from torch._dynamo.types import ConvertFrameReturn
from torch.fx.experimental import _config as symbols
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.hooks import RemovableHandle

from cuconv.nn import asked
from cuconv.nn.backend import cuconv
from cuconv.nn.comparison import GRADIENTS, INFERENCE, seeded
from cuconv.nn.dispatch import outside
from cuconv.nn.folded import Folded, calling
from cuconv.nn.operator import PLAIN_TYPES, is_differentiated
from cuconv.nn.traced import layers

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_GRAPHS = 10_000  # all models of a process share the limit of a function
MOST_CONDITIONS = 50  # about one size; CNNs of torchvision and timm have up to 19
MAX_TRIES = 4  # calls may change what their own guards read, such as a counter


class Graphs:
    """The graphs that torch's compiler has made of a model's forward. Copies of the model share them.

    torch keeps what it compiles with the code of a function, so each `Graphs` has a function of its own. Where the
    guards of a graph accept a call, torch runs the graph in place of this function; otherwise the function runs.

    modes      the modes of torch, besides torch.no_grad(), in which graphs may run
    any_batch  whether a graph may stand for any number of images; otherwise there is one for 1, and one for more
    has_hooks  whether a module has hooks, or a call registers some: then guards look at the hooks of every module,
               which takes a fifth of a call's host time. Otherwise a model with hooks runs its own code
    folded     the number of calls in which graphs computed every convolution
    partly     the number of calls in which a graph ran, but torch computed a convolution after a graph break
    own        the number of calls that ran the model's own code
    refused    why a part of the model has no graph, where its code asks what no guard checks; "" elsewhere
    """

    def __init__(self, base: type[nn.Module], precision: str, modes: set[str], any_batch: bool, has_hooks: bool):
        self._made_of = (base, precision, frozenset(modes), any_batch, has_hooks)
        self._has_hooks = has_hooks
        self._precision, self._any_batch = precision, any_batch
        self._must_make_graphs = False  # at the first call, as for a model that was loaded
        self.modes = set(modes)
        self.folded = self.partly = self.own = 0
        self._base, self._forward = base, base.forward
        self.prepare: Callable[[Folded, list[Any]], object] | None = None
        self._compiled: list[Folded] = []
        self._parts: set[CodeType] = set()  # functions, also those that resume after a break, whose graphs have layers
        self.refused = ""
        self._entry = self._new_entry()
        backend = self._backend
        self._optimized = torch._dynamo.optimize(backend)(self._entry)
        self._leave = self._callback_that_compiles_nothing()

    def __deepcopy__(self, _: Any) -> Graphs:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (bool(self._compiled) or self._must_make_graphs, *self._made_of)

    def __len__(self) -> int:
        return len(self._compiled)

    def of_calls(self) -> list[Folded]:
        """The folded graphs, in the order in which they were made."""
        return list(self._compiled)

    def compile(self, model: nn.Module, inputs: Callable[[], tuple[Any, Any]]) -> None:
        """Make graphs for a call, and for calls of other sizes and numbers of images. Changes the model as a call does.

        A call may move what its guards read, such as a counter: then the next calls are compiled, too.
        """
        for _ in range(MAX_TRIES):
            known = len(self)
            arguments, keywords = pytree.tree_map_only(Tensor, _of_any_size, inputs())
            mode, settings = torch.inference_mode(False), _settings(self._has_hooks, self._any_batch)
            with mode, torch.no_grad(), outside(), settings, calling(model), asked.modes() as modes:
                self._optimized(model, *arguments, **keywords)
            self.modes -= modes
            if len(self) == known:
                return

    def call(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The model's result."""
        if not (self._compiled or self._must_make_graphs) or not self._may_run(
            pytree.tree_leaves((arguments, keywords))
        ):
            return self.own_code(model, arguments, keywords)
        if self._base.forward is not self._forward or (not self._has_hooks and _has_new_hooks(model)):
            return self.own_code(model, arguments, keywords)
        if self._must_make_graphs:
            self._fill(model, arguments, keywords)
        layers.ran = False
        result = self._in_no_grad(model, arguments, keywords)
        if result is _MISSED:
            return self.own_code(model, arguments, keywords)
        if layers.ran:
            self.partly += 1
        else:
            self.folded += 1
        return result

    def _in_no_grad(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The result of a graph, in the mode that graphs are made in; _MISSED where no guards accept the call."""
        with outside():
            if torch.is_inference_mode_enabled():
                with torch.inference_mode(False), torch.no_grad():
                    arguments, keywords = pytree.tree_map_only(Tensor, _normal, (arguments, keywords))
                    return self._run(model, arguments, keywords)
            if torch.is_grad_enabled():
                with torch.no_grad():
                    return self._run(model, arguments, keywords)
            return self._run(model, arguments, keywords)

    def _fill(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Make the graphs of a model that was loaded, by its first call."""
        self._must_make_graphs = False
        with suppress(Exception), seeded():  # the model's own code says what is wrong
            self.compile(copy.deepcopy(model), lambda: copy.deepcopy((arguments, keywords)))

    def own_code(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The result of the model's own code."""
        self.own += 1
        try:
            return self._base.forward(model, *arguments, **keywords)
        finally:
            if self._compiled and any(module.training for module in model.modules()):
                self.forget()  # statistics may have moved

    def drop(self) -> None:
        """Have no graphs from now on."""
        self._compiled.clear()
        reset_code(self._entry.__code__)

    def forget(self) -> None:
        """Take the weights anew at the next call."""
        for graph in self._compiled:
            graph.forget()

    def _run(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the entry, in place of which torch runs a graph whose guards accept the call.

        torch._dynamo.run would also run graphs of other backends in code that models share, and raises an exception
        while another thread traces a graph.
        """
        before = set_eval_frame(self._leave)
        try:
            with calling(model):
                return self._entry(model, *arguments, **keywords)
        finally:
            set_eval_frame(before)

    def _new_entry(self) -> Callable[..., Any]:
        """A function with code of its own, for which torch's compiler keeps the graphs of this model alone."""
        forward = self._forward

        def entry(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # is_compiling() is also true while another thread compiles
                return forward(model, *arguments, **keywords)
            return _MISSED

        code = entry.__code__.replace(co_name=f"converted_{next(_numbers)}")  # torch remembers sizes by this name
        return FunctionType(code, entry.__globals__, code.co_name, None, entry.__closure__)

    def _backend(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """The backend of torch.compile by which the graphs are made."""
        if why := asked.what_no_guard_checks():
            self.refused = why
            raise SkipFrame(why)  # this part of the model runs as it is
        asked.guard_empty_dictionaries()
        return cuconv(graph, inputs, options={"freeze": True, "precision": self._precision}, made=self._note)

    def _callback_that_compiles_nothing(self) -> Callable[..., Any]:
        """A function for torch to call where no graph stands for a part of a call: it leaves the code as it is."""

        def leave(frame: FrameType, *_: Any) -> ConvertFrameReturn:
            if frame.f_code in self._parts:
                layers.ran = True
            return ConvertFrameReturn(apply_to_code=False)

        leave._torchdynamo_orig_backend = self._backend  # type: ignore[attr-defined]
        return leave

    def _note(self, folded: Folded) -> None:
        folded.before_the_first_call = self.prepare
        if folded.has_layers:
            self._parts.add(asked.traced_code()[0])
        self._compiled.append(folded)

    def _may_run(self, leaves: list[Any]) -> bool:
        """Whether graphs may run for the flattened arguments of a call, if their guards accept it.

        Guards do not see three things: tools of torch that need the model's own operators, the sign of 0.0, and an
        input without images, since graphs are for any number.
        """
        if torch.is_grad_enabled():
            if GRADIENTS not in self.modes:
                return False
        elif INFERENCE not in self.modes and torch.is_inference_mode_enabled():
            return False
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if type(leaf) not in PLAIN_TYPES or not leaf.numel():
                    return False
                if leaf.requires_grad and torch.is_grad_enabled():
                    return False
            elif isinstance(leaf, fx.Proxy) or (type(leaf) is float and leaf == 0.0 and copysign(1.0, leaf) < 0):
                return False
        if torch._C._get_tracing_state() is not None or is_differentiated() or _is_in_mode():
            return False
        return not (_global_forward_hooks or _global_forward_pre_hooks)


@contextmanager
def _settings(has_hooks: bool, any_batch: bool) -> Iterator[None]:
    """Settings of torch's compiler while it makes graphs.

    Models share the code that follows a graph break, so a function may have more graphs than torch allows by default.
    A size that many conditions are about is fixed to that of the example, since torch's compiler would take minutes:
    the windows of Swin ask a thousand times.
    """
    guards = torch._dynamo.config.patch(
        skip_nnmodule_hook_guards=not has_hooks,
        recompile_limit=MOST_GRAPHS,
        accumulated_recompile_limit=MOST_GRAPHS,
        use_recursive_dict_tags_for_guards=False,  # as of torch 2.13: they miss changes of dictionaries
    )
    sizes = {"backed_size_oblivious": any_batch, "symbol_guard_limit_before_specialize": MOST_CONDITIONS}
    with guards, symbols.patch(sizes):  # type: ignore[attr-defined]
        yield


def _loaded(has_graphs: bool, *made_of: Any) -> Graphs:
    """The graphs of a model that is loaded: none yet."""
    graphs = Graphs(*made_of)
    graphs._must_make_graphs = has_graphs
    return graphs


_MISSED = object()  # returned where no graph stands for a call
_numbers = itertools.count()


def has_hooks(model: nn.Module) -> bool:
    """Whether a module has a hook that runs with its forward."""
    return any(vars(module).get(name) for module in model.modules() for name in HOOKS)


def _has_new_hooks(model: nn.Module) -> bool:
    """Whether a module has such a hook; looked up again after torch has made any new hook, or a module is another."""
    made = RemovableHandle.next_id
    if not made:  # nobody has made a hook in this process
        return False
    number, modules = vars(model).get("_without_hooks", (None, []))
    if number == made and all(_are(children.values(), known) for children, known in modules):
        return False
    if has_hooks(model):
        return True
    children = [module._modules for module in model.modules() if module._modules]
    vars(model)["_without_hooks"] = made, [(one, list(one.values())) for one in children]
    return False


def _are(values: Collection[Any], others: Collection[Any]) -> bool:
    """Whether two collections have the same objects in the same order."""
    return len(values) == len(others) and all(map(operator.is_, values, others))


def _is_in_mode() -> bool:
    """Whether a mode of torch sees the operations of this thread, but for the one that only sets a default device."""
    modes = _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    return _get_current_dispatch_mode() is not None or any(type(mode) is not DeviceContext for mode in modes)


def _of_any_size(tensor: Tensor) -> Tensor:
    """A copy of a tensor whose number of images, and other sizes above 1, may change in later calls."""
    copied = tensor.detach().clone()
    for place, size in enumerate(copied.shape):
        if size > 1 or (size == 1 and place == 0 and copied.dim() > 1):
            torch._dynamo.maybe_mark_dynamic(copied, place)
    return copied


def _normal(tensor: Tensor) -> Tensor:
    """A tensor with the same memory that is not one of inference mode, which torch's guards tell apart."""
    if not tensor.is_inference() or tensor.layout != torch.strided:
        return tensor
    normal = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return normal.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


class Converted(nn.Module):
    """The class that `convert` adds to the class of a model."""

    _graphs: Graphs | None = None

    def __init_subclass__(cls, **_: Any) -> None:
        """Do not tell the model's own classes, which may keep a list of theirs."""

    def refresh(self, original: nn.Module | None = None) -> None:
        """Take over the weights of the original model, or those that were written to this one.

        The original must have the same parameters and buffers as the model that was converted.
        """
        if original is not None:
            state, mine = original.state_dict(), dict(tensors_of(self))
            with torch.no_grad():
                for name, tensor in tensors_of(original):
                    if name not in state and name in mine:
                        mine[name].copy_(tensor)
            self.load_state_dict(state)
        if self._graphs is not None:
            self._graphs.forget()

    def _apply(self, change: Any, recurse: bool = True) -> Any:
        if self._graphs is not None:
            self._graphs.forget()  # torch swaps no tensor that somebody refers to
        result = super()._apply(change, recurse)
        if self._graphs is not None:
            self._graphs.forget()  # parameters stay the same objects
        return result

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = dict(self.__getstate__())
        state.pop("_without_hooks", None)
        return _rebuild, (base_of(type(self)), state.pop("_graphs", None)), state


def base_of(kind: type[nn.Module]) -> type[nn.Module]:
    """The model's own class, of a class that `class_for` may have made."""
    return kind.__mro__[2] if issubclass(kind, Converted) else kind


@cache
def class_for(base: Any) -> type[nn.Module]:
    """The class of a converted model of a class."""

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        graphs: Graphs | None = self._graphs
        if graphs is None or torch.compiler.is_dynamo_compiling():
            return base.forward(self, *arguments, **keywords)
        return graphs.call(self, arguments, keywords)

    attributes = {"forward": wraps(base.forward)(forward), "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (Converted, base), {**attributes, "__qualname__": base.__qualname__})


def _rebuild(base: Any, graphs: Graphs | None) -> nn.Module:
    """A converted model of a class, without its state, for copies and pickles."""
    kind: Any = class_for(base)
    model: nn.Module = kind.__new__(kind)
    model.__dict__["_graphs"] = graphs
    return model


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters, buffers and other tensors of a model under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}".lstrip("."), value
