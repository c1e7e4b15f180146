"""A model's forward as a graph of ATen operators, and the conditions under which the graph stands for the model.

torch.export runs the model's own Python code on tensors without data, so that the graph has what the code really did:
default arguments, branches, patched methods, autocast, writes in place. Sizes are symbols. Where the code branches on a
size, the branch taken is a condition of the graph; `Conditions` checks it for the sizes of a call.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ShapesCollection, _trace
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.utils.parametrize import is_parametrized
from torch.utils import _pytree as pytree

from cuconv.nn.comparison import call, first_line
from cuconv.nn.questions import Asked, CaptureError, TooComplex, asked, expressions
from cuconv.nn.surroundings import symbolic

SQUEEZES = (torch.ops.aten.squeeze, torch.ops.aten.squeeze_, torch.ops.aten.squeeze_copy)
CHANNELS_LAST = "channels last"
MAX_KNOWN_SIZES = 4096
_lock = threading.Lock()  # torch.export and the recording below change the state of the process


@dataclass(slots=True)
class Conditions:
    """Conditions that a call must meet for a graph to stand for its model.

    kinds      the type, dtype, device, rank and layout of each flattened argument that is a tensor, or its value
    shapes     the sizes of each tensor, as numbers and sympy expressions; () for other arguments
    decisions  conditions on sizes that the model's code asked for, and the answers
    modes      questions about modes of torch that the model's code asked, and the answers
    """

    kinds: list[Any]
    shapes: list[tuple[Any, ...]]
    decisions: list[tuple[Any, Any]]
    modes: dict[Callable[[], bool], bool]
    _known: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def hold(self, leaves: Sequence[Any]) -> bool:
        """Whether they hold for the flattened arguments of a call."""
        if len(leaves) != len(self.kinds) or any(ask() != answer for ask, answer in self.modes.items()):
            return False
        sizes = []
        for leaf, kind in zip(leaves, self.kinds, strict=True):
            if _kind(leaf) != kind:
                return False
            sizes.append(leaf.shape if isinstance(leaf, Tensor) else ())
        key = tuple(sizes)
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN_SIZES:
                self._known.clear()
            self._known[key] = self._hold_for(key)
        return self._known[key]

    def _hold_for(self, sizes: tuple[Any, ...]) -> bool:
        values: dict[Any, int] = {}
        pairs = [
            (expected, size)
            for shape, actual in zip(self.shapes, sizes, strict=True)
            for expected, size in zip(shape, actual, strict=True)
        ]
        for expected, size in pairs:  # torch.export takes no symbol for 0
            if _is_symbol(expected) and (size == 0 or values.setdefault(expected, size) != size):
                return False
        if any(_value(expected, values) != size for expected, size in pairs if not _is_symbol(expected)):
            return False
        return all(_value(condition, values) == answer for condition, answer in self.decisions)


def _kind(leaf: Any) -> tuple[Any, ...]:
    """The type, dtype, device, rank, bits and layout of a tensor, or the type and value of another argument."""
    if isinstance(leaf, Tensor):
        kind = type(leaf) if not vars(leaf) else object  # no match: the model may read its attributes
        return (kind, leaf.dtype, leaf.device, leaf.dim(), leaf.is_conj(), leaf.is_neg(), _layout(leaf))
    return (type(leaf), repr(leaf) if isinstance(leaf, float) else leaf)  # 0.0 is equal to -0.0


def _layout(tensor: Tensor) -> Any:
    """How a tensor lies in memory: in one of the usual ways at any size, or with just these strides."""
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    if tensor.is_contiguous():
        return "contiguous"
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return CHANNELS_LAST if is_last else tensor.stride()


def share_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether two of these tensors are of one storage."""
    strided = [tensor for tensor in tensors if tensor.layout == torch.strided]
    return len({tensor.untyped_storage()._cdata for tensor in strided}) < len(strided)


def _is_symbol(expression: Any) -> bool:
    return getattr(expression, "is_Symbol", False)


def _value(expression: Any, values: dict[Any, int]) -> Any:
    """The value of a number or of an expression of symbols; an expression again where a symbol has no value."""
    return expression.subs(values) if getattr(expression, "free_symbols", None) else expression


@dataclass(slots=True)
class Captured:
    """A graph for flattened arguments. Parameters, buffers and constants are attributes, `tensors` by their names.

    are_last: of each result, whether it is an image whose channels are last in memory.
    """

    graph: fx.GraphModule
    tensors: dict[str, str]
    constants: dict[str, Tensor]
    in_spec: Any
    out_spec: Any
    conditions: Conditions
    are_last: list[bool]


def capture(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
    """The graph of a model in the mode that it is in, by a call on arguments like the given ones.

    Later calls may change every size of a tensor that the model allows. If the model cannot be captured so, since sizes
    are keys of a cache or too long expressions of others, they may change only the first size of each tensor. Raises
    CaptureError where torch.export cannot capture the model. Turns tensors among the model's attributes to buffers.
    """
    if any(map(is_parametrized, model.modules())):
        raise CaptureError("a module has parametrizations, which its class must be free to drop")
    leaves, in_spec = pytree.tree_flatten((arguments, keywords))
    if share_memory([leaf for leaf in leaves if isinstance(leaf, Tensor)]):
        raise CaptureError("two arguments share memory")
    _make_buffers(model)
    try:
        return _capture(model, in_spec, leaves, None)
    except CaptureError as error:
        try:
            return _capture(model, in_spec, leaves, 1)
        except CaptureError:
            raise error from None


def _make_buffers(model: nn.Module) -> None:
    """Make buffers of the tensors among the attributes of a model.

    torch.export has no data for buffers: the capture fails where the code reads a number from one, which would be a
    constant of the graph otherwise.
    """
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if type(value) is Tensor and not hasattr(type(module), name):  # which would be found before a buffer
                module._buffers[name] = module.__dict__.pop(name)


def _capture(model: nn.Module, in_spec: Any, leaves: list[Any], dimensions: int | None) -> Captured:
    """`capture` with symbols for so many dimensions of each tensor, or all; a batch of 1 is doubled for that."""
    if (doubled := _doubled(leaves)) is not None and _takes(model, in_spec, doubled):
        try:
            captured = _unlifted(model, *_export(model, in_spec, doubled, dimensions), leaves, in_spec)
            if captured.conditions.hold(leaves):
                return captured  # otherwise the model treats one image in another way than two
        except TooComplex:
            raise
        except CaptureError:
            pass
    _takes(model, in_spec, leaves)
    return _unlifted(model, *_export(model, in_spec, leaves, dimensions), leaves, in_spec)


def _doubled(leaves: list[Any]) -> list[Any] | None:
    """The arguments with two images where they have one; None where they have not. Symbols stand for sizes above 1."""
    batches = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 1}
    if batches != {1}:
        return None
    return [torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() > 1 else leaf for leaf in leaves]


def _takes(model: nn.Module, in_spec: Any, leaves: list[Any]) -> bool:
    """Whether a model can be called with arguments.

    A call with data comes before every capture: where the model's code keeps tensors for later calls, they must not be
    those of a capture, which have no data.
    """
    try:
        call(model, pytree.tree_unflatten(_copies(leaves), in_spec))
    except Exception:  # the model's own code
        return False
    return True


def _copies(leaves: list[Any]) -> list[Any]:
    return [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _export(model: nn.Module, in_spec: Any, leaves: list[Any], dimensions: int | None) -> tuple[Any, Asked]:
    """torch.export's program, and what the model's code asked."""
    leaves = _copies(leaves)
    arguments, keywords = pytree.tree_unflatten(leaves, in_spec)
    shapes = ShapesCollection()
    for leaf in leaves:
        if isinstance(leaf, Tensor):  # sizes of 1 stay fixed, but for the batch: a symbol never broadcasts
            sizes = list(enumerate(leaf.shape))[:dimensions]
            shapes[leaf] = {place: Dim.STATIC if place and size == 1 else Dim.AUTO for place, size in sizes}
    dynamic = shapes.dynamic_shapes(model, arguments, keywords)
    try:
        with (
            _lock,
            _quiet(),
            _one_flag(),
            _changes_kept(),
            torch.inference_mode(False),
            torch.no_grad(),
            asked() as found,
        ):
            program = torch.export.export(model, arguments, keywords, dynamic_shapes=dynamic, strict=False)
    except TooComplex:
        raise
    except Exception as error:  # the model's own code runs, which may raise anything
        raise CaptureError(first_line(error)) from error
    finally:
        if place := symbolic(model):
            _takes(model, in_spec, leaves)  # what has no data must not stay there
    if place:
        raise CaptureError(f"the model keeps something of a call in {place}")
    if found.failures:  # the model's code has caught them: other sizes may not raise them
        raise CaptureError(first_line(found.failures[0]))
    return program, found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings and what torch.export prints where it fails.

    Symbols get no conditions that only tell apart sizes of 0 and 1.
    """
    logger = logging.getLogger(ShapeEnv.__module__)  # it warns of conditions that it cannot solve
    disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            with _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
                yield
    finally:
        logger.disabled = disabled


@contextmanager
def _changes_kept() -> Iterator[None]:
    """Keep what the model's code changes in its attributes, to find it: torch.export puts most of it back."""
    trace: Any = _trace
    before = trace._detect_attribute_assignment
    trace._detect_attribute_assignment = lambda model: nullcontext()
    try:
        yield
    finally:
        trace._detect_attribute_assignment = before


@contextmanager
def _one_flag() -> Iterator[None]:
    """Give cuDNN one flag for TF32, that of convolutions, where recurrent layers have another setting.

    torch.export reads the flag, which torch refuses otherwise.
    """
    cudnn: Any = torch.backends.cudnn
    before = [(kind, kind.fp32_precision) for kind in (cudnn.conv, cudnn.rnn)]
    cudnn.allow_tf32 = before[0][1] == "tf32"
    try:
        yield
    finally:
        for kind, precision in before:
            if kind.fp32_precision != precision:
                kind.fp32_precision = precision


def _attribute(model: nn.Module, path: str) -> Tensor | None:
    """The tensor among the attributes of a model that has a name; None where there is none."""
    owner, _, name = path.rpartition(".")
    try:
        value = vars(model.get_submodule(owner)).get(name)
    except AttributeError:
        return None
    return value if isinstance(value, Tensor) else None


def _unlifted(model: nn.Module, program: Any, found: Asked, leaves: list[Any], in_spec: Any) -> Captured:
    """The graph of a program with parameters, buffers and constants as attributes instead of arguments."""
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    tensors: dict[str, str] = {}
    constants: dict[str, Tensor] = {}
    shapes: list[tuple[Any, ...]] = []
    for node in program.graph.nodes:
        kind = kinds[node.name].kind if node.op == "placeholder" else None
        if kind in (InputKind.PARAMETER, InputKind.BUFFER):
            tensors[node.name] = kinds[node.name].target
        elif kind == InputKind.CONSTANT_TENSOR:
            target = kinds[node.name].target
            if _attribute(model, target) is None:
                constants[node.name] = program.constants[target]
            else:
                tensors[node.name] = target
        elif kind not in (None, InputKind.USER_INPUT):
            raise CaptureError(f"the model has an argument or attribute of kind {kind}")
        if kind is None or kind == InputKind.USER_INPUT:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            copies[node] = graph.get_attr(node.name)
            copies[node].meta = dict(node.meta)
        if kind == InputKind.USER_INPUT:
            value = node.meta.get("val")
            shapes.append(expressions(value.shape) if isinstance(value, Tensor) else ())
    root = nn.Module()
    for name, module in program.graph_module.named_children():
        root.add_module(name, module)
    for name in (*tensors, *constants):
        root.register_buffer(name, None)
    module = fx.GraphModule(root, graph)
    _check_result(program.call_spec.out_spec)
    decisions = [*found.answers, *((sympy.Eq(size, 1), sympy.false) for size in _kept_by_squeeze(program))]
    decisions += _rests_of_splits(program)
    resolved = [(_resolved(question, program), answer) for question, answer in dict.fromkeys(decisions)]
    conditions = Conditions([_kind(leaf) for leaf in leaves], shapes, resolved, found.modes)
    results = next(iter(node.args[0] for node in reversed(graph.nodes) if node.op == "output"))
    are_last = [isinstance(one, fx.Node) and _is_last(one.meta.get("val")) for one in results]
    return Captured(module, tensors, constants, in_spec, program.call_spec.out_spec, conditions, are_last)


def _is_last(value: Any) -> bool:
    """Whether a result is an image whose channels are last in memory; not where its sizes depend on data."""
    try:
        return isinstance(value, Tensor) and _layout(value) == CHANNELS_LAST
    except GuardOnDataDependentSymNode:
        return False


def _check_result(spec: Any) -> None:
    """Raise CaptureError for a result with a torch.Size, of which torch makes a tuple."""
    if spec.type is torch.Size:
        raise CaptureError("the model returns a torch.Size")
    for child in spec.children():
        _check_result(child)


def _kept_by_squeeze(program: Any) -> Iterator[Any]:
    """Sizes that torch.squeeze would drop if they were 1: then the model's code would see another rank."""
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in SQUEEZES:
            value, *rest = node.args
            sizes, dims = value.meta["val"].shape, rest[0] if rest else range(value.meta["val"].dim())
            for dim in dims if isinstance(dims, Sequence) else (dims,):
                if not isinstance(sizes[dim], int):
                    yield sizes[dim].node.expr


def _rests_of_splits(program: Any) -> Iterator[tuple[Any, Any]]:
    """Each size modulo its parts in torch.tensor_split, with the example's: so many parts are longer by one."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.tensor_split.tensor_indices_or_sections:
            raise CaptureError("the places where torch.tensor_split splits are in a tensor")
        if node.op == "call_function" and node.target is torch.ops.aten.tensor_split.sections:
            value, sections, dim = (*node.args, 0)[:3]
            size = value.meta["val"].shape[dim]
            if not isinstance(size, int):
                yield sympy.Mod(size.node.expr, sections), size.node.hint % sections


def _resolved(question: Any, program: Any) -> Any:
    """A question in the symbols that are left, since torch.export replaces symbols that it finds equal."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, Tensor) else ():
            if not isinstance(size, int):
                return size.node.shape_env.replace(question)
    return question
