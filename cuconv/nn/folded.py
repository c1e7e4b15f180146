"""A folded graph as Python code, which computes with its constant tensors once, such as to pack weights."""

from __future__ import annotations

import builtins
import copy
import operator
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cuconv.core.activation import NONE, RELU
from cuconv.core.launch import KernelVariant
from cuconv.nn.dispatch import inside
from cuconv.nn.formats import HALVES
from cuconv.nn.frozen import Concatenation, FrozenConv2d, FrozenLinear, Layers
from cuconv.nn.fusions import fully_connected
from cuconv.nn.nodes import Node, Operands, joined
from cuconv.nn.operator import CONV2D, recorded
from cuconv.nn.padding import in_pairs
from cuconv.nn.planes import MATRIX_PRODUCT, FrozenExcitation, excited, plane_kernels
from cuconv.nn.pool_call import pool_kernels
from cuconv.nn.pooling import max_pool2d
from cuconv.nn.report import Converted
from cuconv.precompile import PlannedCall

COUNTER = "num_batches_tracked"  # torch counts writes to it, but none of a batch norm to its mean and variance
STATISTICS = ("running_mean", "running_var")


class _Thread(threading.local):
    """The model that a thread calls, where that is known."""

    model: nn.Module | None = None


_thread = _Thread()


@contextmanager
def calling(model: nn.Module) -> Iterator[None]:
    """Tell the graphs that this thread calls whose they are."""
    before, _thread.model = _thread.model, model
    try:
        yield
    finally:
        _thread.model = before


class Folded:
    """A function of a list of a graph's inputs, which returns its outputs as a tuple. Prints as its Python code.

    Some inputs are constant. What is computed from them, such as packed weights, is kept while these tensors live, and
    computed anew where others replace them, their memory is another, or their version counters change.
    """

    # Slots, since AOTAutograd's wrappers copy what is in a __dict__, and would keep models alive.
    __slots__ = (
        "__weakref__",
        "_called",
        "_constant",
        "_forward",
        "_frozen",
        "_made",
        "_rows",
        "_source",
        "before_the_first_call",
    )
    _boxed_call = True  # takes its inputs as one list, as AOTAutograd asks for

    def __init__(self, graph: fx.Graph, constants: set[Node], rows: list[tuple[Converted, Node]]):
        """Make the code of a graph that `fold` has changed.

        constants: its nodes with constant tensors. rows: what became of its layers, and the nodes of their weights.
        """
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._constant = [place for place, node in enumerate(inputs) if node in constants]
        places = {inputs[place]: number for number, place in enumerate(self._constant)}
        self._rows = [(row, places.get(weight)) for row, weight in rows]
        self._frozen = _Frozen(graph, constants)
        self._source, self._forward = compiled(graph)
        self._made: list[_Made] = []
        self._called = {node.target for node in graph.nodes} | self._frozen.kinds
        self.before_the_first_call: Callable[[Folded, list[Any]], object] | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        """The outputs."""
        if self.before_the_first_call is not None:
            prepare, self.before_the_first_call = self.before_the_first_call, None
            prepare(self, inputs)
        tensors = [inputs[place] for place in self._constant]
        made = next((made for made in self._made if made.is_for(tensors)), None)
        if made is None or made.state != _state(tensors, made.counters):
            made = self._make(tensors)
        with inside():
            return self._forward(made.attributes, *inputs)

    def planned_calls(self, inputs: list[Any]) -> set[PlannedCall]:
        """The calls of cuConv's kernels that a call with such inputs makes; the call runs on tensors without data."""
        attributes = self._make([inputs[place] for place in self._constant]).attributes
        with torch.no_grad(), recorded() as calls, FakeTensorMode(allow_non_fake_inputs=True) as mode:
            self._forward(attributes, *(mode.from_tensor(one) if isinstance(one, Tensor) else one for one in inputs))
        return calls

    def kernels(self, types: Collection[torch.dtype], arch: str) -> list[KernelVariant]:
        """The kernel variants of a call that computes tensors of these types, beside those of convolutions."""
        of_pools = pool_kernels(types, arch) if max_pool2d in self._called else []
        return plane_kernels(self._called, types, arch) + of_pools

    def rows(self, names: dict[int, str]) -> Iterator[Converted]:
        """A row of the report for each layer, of each model or part that has called the graph.

        names: of layers, by the id() of their weights. Otherwise a layer has the name that torch's compiler gave it.
        """
        for made in self._made:
            for row, place in self._rows:
                name = row.name if place is None else names.get(id(made.references[place]()), row.name)
                yield replace(row, name=name)

    def forget(self) -> None:
        """Make what depends on constant tensors anew at the next call."""
        self._made.clear()

    @property
    def has_layers(self) -> bool:
        """Whether the graph has a convolution or a fully connected layer, by cuConv or torch."""
        return bool(self._rows)

    @property
    def packed_bytes(self) -> int:
        """The device memory of the packed weights of one model, in bytes."""
        kept = [vars(made.attributes).values() for made in self._made]
        layers = [[value for value in values if isinstance(value, FrozenConv2d | Layers)] for values in kept]
        return max((sum(layer.packed_bytes for layer in values) for values in layers), default=0)

    def _make(self, tensors: Sequence[Tensor]) -> _Made:
        """Compute what depends on constant tensors, and keep it as long as these are there."""
        kept = self._made

        def drop(_: Any) -> None:
            kept[:] = [one for one in kept if one is not made]

        references = [weakref.ref(tensor, drop) for tensor in tensors]
        counters = _counters(tensors)
        made = _Made(self._frozen.attributes(tensors), _state(tensors, counters), references, counters)
        kept[:] = [one for one in kept if not one.is_for(tensors)] + [made]
        return made

    def __str__(self) -> str:
        return self._source


class _Made(NamedTuple):
    """The attributes that the code reads for constant tensors, the state of these, and weak references to them.

    counters: tensors that change with statistics among the constants.
    """

    attributes: _Attributes
    state: list[int]
    references: list[weakref.ref[Tensor]]
    counters: list[Tensor]

    def is_for(self, tensors: Sequence[Tensor]) -> bool:
        """Whether this was made of these very tensors, one by one: id() may cost as much as all else of a call."""
        return all(map(operator.is_, tensors, map(operator.call, self.references)))


def _state(tensors: Sequence[Tensor], counters: Sequence[Tensor]) -> list[int]:
    """Numbers that change with a tensor's memory, and with writes to it that torch counts."""
    return [*map(_VERSION, tensors), *map(Tensor.data_ptr, tensors), *map(_VERSION, counters)]


_VERSION = operator.attrgetter("_version")


def _counters(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The counters of the batch norms whose statistics are among tensors, in the model that is called."""
    if _thread.model is None:
        return []
    known = {id(tensor) for tensor in tensors}
    found = [(module._buffers, module._buffers.get(COUNTER)) for module in _thread.model.modules()]
    return [
        counter
        for buffers, counter in found
        if counter is not None and not known.isdisjoint(id(buffers.get(name)) for name in STATISTICS)
    ]


class _Attributes:
    """The attributes that the code of a graph reads: layers with constant weights, and other constant tensors."""


def _await_weights(made: _Attributes) -> None:
    """Wait until weights in half precision are written: kernels read constant ones before the kernel ahead ends.

    A capture forbids that; then the layers compute as if their weights were not constant.
    """
    layers = [value for value in vars(made).values() if isinstance(value, FrozenConv2d | Layers)]
    found = [one for layer in layers for one in (layer.convolutions if isinstance(layer, Layers) else [layer])]
    early = [one for one in found if one.weight.dtype in HALVES and one.weight.is_cuda]
    for device in {one.weight.device for one in early}:
        with torch.cuda.device(device):
            is_captured = torch.cuda.is_current_stream_capturing()
            if not is_captured:
                torch.cuda.current_stream(device).synchronize()
        for one in early:
            one.is_written = not is_captured


class _Frozen:
    """The constant part of a graph. The rest reads its results as attributes.

    Convolutions and fully connected layers with constant weights become calls of layers, which are attributes, too.
    """

    def __init__(self, graph: fx.Graph, constants: set[Node]):
        self._others = {  # attributes that torch's tracer has made, such as constants of the code
            str(node.target): getattr(graph.owning_module, str(node.target))
            for node in graph.nodes
            if node.op == "get_attr"
        }
        self._layers: dict[str, FrozenConv2d | Layers] = {}
        self._results: dict[Node, str] = {}  # the names of constant nodes
        for node in list(graph.nodes):
            if node.target is CONV2D and constants.issuperset(one for one in node.args[1:3] if one is not None):
                self._freeze(node, Operands(*node.args))
            elif node.target is fully_connected:
                self._freeze_linear(node)
        for node in list(graph.nodes):
            self._concatenate(node)
            self._excite(node)
        for node in list(graph.nodes):
            if node in constants and node.op == "call_function" and not constants.issuperset(node.users):
                with graph.inserting_before(node):  # graph.get_attr() would warn, since the attribute is set later
                    read = graph.create_node("get_attr", self._named(node))
                node.replace_all_uses_with(read, lambda user: user not in constants)
        self._graph = constant_graph(graph, constants, self._results)
        for node in reversed(graph.nodes):
            if node in constants and node.op == "call_function":
                graph.erase_node(node)

    @property
    def kinds(self) -> set[Any]:
        """The types of the layers."""
        return set(map(type, self._layers.values()))

    def attributes(self, tensors: Sequence[Tensor]) -> _Attributes:
        """The attributes for constant tensors as they are now."""
        made = _Attributes()
        with torch.inference_mode(False), torch.no_grad():
            _, function = compiled(self._graph)
            made_now = [value.detach() for value in function(None, *tensors)]  # not the tensors that `_made` goes with
            values = dict(zip(self._results.values(), made_now, strict=True))
            for name, layer in self._layers.items():
                bound = copy.deepcopy(layer)
                bound.bind(values.__getitem__)
                setattr(made, name, bound)
        made.__dict__.update(self._others | values)
        _await_weights(made)
        return made

    def _named(self, node: Node | None) -> Any:
        """The name of a constant node's tensor; None for no node."""
        return None if node is None else self._results.setdefault(node, f"constant_{len(self._results)}")

    def _freeze(self, node: Node, operands: Operands) -> None:
        geometry = (tuple(operands.stride), in_pairs(operands.padding), tuple(operands.dilation), operands.groups)
        weights = self._named(operands.weight), self._named(operands.bias)
        layer = FrozenConv2d(*weights, geometry, operands.function, operands.precision)
        inputs = (operands.input,) if operands.residual is None else (operands.input, operands.residual)
        self._call(node, layer, inputs)

    def _freeze_linear(self, node: Node) -> None:
        input, weight, bias, relu, precision = node.args
        layer = FrozenLinear(self._named(weight), self._named(bias), MATRIX_PRODUCT, RELU if relu else NONE, precision)
        self._call(node, layer, (input,))

    def _concatenate(self, node: Node) -> None:
        """Let convolutions write to their places in a concatenation that alone uses their outputs."""
        parts = joined(node)
        layers = [self._layers.get(str(part.target)) for part in parts]
        if not parts or not all(type(layer) is FrozenConv2d for layer in layers):
            return
        if not all(len(part.args) == 1 for part in parts):  # one with a residual
            return
        self._call(
            node,
            Concatenation([layer for layer in layers if isinstance(layer, FrozenConv2d)]),
            tuple(part.args[0] for part in parts),
        )
        for part in parts:
            del self._layers[str(part.target)]
            node.graph.erase_node(part)

    def _excite(self, node: Node) -> None:
        """Let one kernel compute a squeeze and excitation."""
        if (parts := excited(node)) is None:
            return
        images, nodes, means = parts
        layers = [self._layers[str(one.target)] for one in nodes]
        plain = [one for one in layers if type(one) is FrozenConv2d and one.geometry == MATRIX_PRODUCT]
        if len(plain) < len(layers):
            return
        self._call(node, FrozenExcitation(*plain), (images,))
        for one in reversed(nodes):
            del self._layers[str(one.target)]
        for one in (*reversed(nodes), *means):
            node.graph.erase_node(one)

    def _call(self, node: Node, layer: FrozenConv2d | Layers, inputs: tuple[Any, ...]) -> None:
        """Put the call of a layer in the place of a node."""
        name = f"layer_{node.name}"
        self._layers[name] = layer
        with node.graph.inserting_before(node):
            call = node.graph.create_node("call_module", name, inputs)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        node.graph.erase_node(node)


def constant_graph(graph: fx.Graph, constants: set[Node], results: Iterable[Node]) -> fx.Graph:
    """The graph that computes some of a graph's constant nodes from its constant inputs."""
    found = fx.Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in constants:
            copies[node] = found.node_copy(node, copies.__getitem__)
    found.output(tuple(copies[node] for node in results))
    found.eliminate_dead_code()
    return found


def compiled(graph: fx.Graph) -> tuple[str, Any]:
    """The Python code of a graph, and the function that it defines."""
    code = graph.python_code("self")
    names = {name: value for name, value in code.globals.items() if not isinstance(value, ModuleType)}
    names |= {"torch": torch, "builtins": builtins, "__builtins__": builtins}
    exec(compile(code.src, "<folded graph>", "exec"), names)
    return code.src, names["forward"]
