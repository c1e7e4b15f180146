"""torch.compile(model, backend="cuconv"): dynamo says which calls a graph stands for, and the graph is folded.

torch finds the backend by an entry point, so that it needs no import. torch's compiler reads the model's code, guards
what the code depends on, and runs it as it is where it does not understand it. What it hands over is a graph of torch's
functions, of which AOTAutograd makes a functional ATen graph; writes to inputs and results that share memory with them
stay outside of that graph.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from cuconv.core.problem import FP32
from cuconv.nn.folded import Folded
from cuconv.nn.fusions import decompositions, fold
from cuconv.nn.layout import keep_interpolation, keep_strides
from cuconv.nn.operator import check_precision
from cuconv.nn.planes import keep_group_norms
from cuconv.nn.traced import BATCH_NORM

OPTIONS = ("freeze", "precision")
STATISTICS: dict[Any, slice] = {F.batch_norm: slice(1, 3), BATCH_NORM: slice(3, 5)}  # the places of mean and variance


def cuconv(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    made: Callable[[Folded], object] = lambda folded: None,
) -> Callable[..., Any]:
    """Compile a graph of torch's compiler: the function for `torch.compile(model, backend="cuconv", options=...)`.

    options:
    freeze     whether parameters, and the statistics of batch norms, are constant: batch norms are multiplied into the
               weights, which are packed once, and again where torch's version counters tell of a change. False by
               default: weights are read at each call, and bias, residual and activation alone are fused
    precision  "fp32" by default: the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32

    made: called with each folded graph.

    Where gradients are to be recorded, torch computes the graph. Raises ValueError for other options.
    """
    freeze, precision = _checked(options or {})
    if torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in inputs):
        warnings.warn(
            "torch computes what the backend cuconv was asked to compile, since gradients are to be recorded: call the "
            "model in torch.no_grad() or torch.inference_mode(), or call model.requires_grad_(False)",
            stacklevel=2,
        )
        forward: Callable[..., Any] = graph.forward
        return forward
    constant = _are_constant(graph, inputs) if freeze else [False] * len(inputs)
    by_torch: Callable[..., Any] = fx.GraphModule(graph, copy.deepcopy(graph.graph)).forward
    keep_interpolation(graph.graph)
    keep_group_norms(graph.graph)
    keep_strides(graph.graph)
    graph.recompile()
    folded: list[Folded] = []
    kinds: list[Any] = []  # what AOTAutograd knows of the graph's inputs

    def compiler(functional: fx.GraphModule, inputs: Sequence[Any]) -> Folded:
        metadata = TracingContext.get().fw_metadata
        kinds.extend([] if metadata is None else metadata.input_info)
        folded.append(_compiled(functional, constant, kinds, precision))
        made(folded[0])
        return folded[0]

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler, decompositions=decompositions(precision))(
        graph, inputs
    )
    if folded and not folded[0].has_layers:
        return by_torch  # has fewer operations than AOTAutograd's graph
    return _for_inputs_apart(compiled, by_torch) if any(kind.mutates_data for kind in kinds) else compiled


def _for_inputs_apart(compiled: Callable[..., Any], by_torch: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that writes to inputs, for calls whose inputs share no memory; torch's for others.

    AOTAutograd takes inputs that had memory of their own when it compiled to have it in every call.
    """

    def call(*inputs: Any) -> Any:
        tensors = [one for one in inputs if isinstance(one, Tensor) and one.layout == torch.strided]
        is_apart = len({one.untyped_storage()._cdata for one in tensors}) == len(tensors)
        return (compiled if is_apart else by_torch)(*inputs)

    return call


def _checked(options: dict[str, Any]) -> tuple[bool, str]:
    """The values of the options. Raises ValueError for what is none."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f"options={{{name!r}: ...}}: the backend cuconv has the options {', '.join(OPTIONS)}")
        if name == "freeze" and not isinstance(value, bool):
            raise ValueError(f"options={{'freeze': {value!r}}}: must be True or False")
    precision = options.get("precision", FP32)
    check_precision(precision)
    return options.get("freeze", False), precision


def _are_constant(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[bool]:
    """Whether each input of dynamo's graph is a parameter, or a buffer with statistics of a batch norm.

    Other buffers stay what they are at each call, since a model's own code may write to them.
    """
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [
        _is_counted(node) and (isinstance(input, nn.Parameter) or (_is_of_a_module(node) and _is_statistic(node)))
        for node, input in zip(places, inputs, strict=True)
    ]


def _is_counted(node: fx.Node) -> bool:
    """Whether an input of dynamo's graph is a tensor whose writes torch counts."""
    argument = node.meta.get("grapharg")
    return argument is not None and argument.is_tensor and not node.meta["example_value"].is_inference()


def _is_of_a_module(node: fx.Node) -> bool:
    """Whether an input of dynamo's graph is a parameter or buffer of a module."""
    return bool(node.meta["grapharg"].source.guard_source.is_unspecialized_nn_module())


def _is_statistic(node: fx.Node) -> bool:
    """Whether an input of dynamo's graph is a fixed mean or variance of batch norms, and nothing else."""
    return bool(node.users) and all(node in user.args[STATISTICS.get(user.target, slice(0))] for user in node.users)


def _compiled(graph: fx.GraphModule, constant: list[bool], kinds: Sequence[Any], precision: str) -> Folded:
    """A functional ATen graph as a function of a list of its inputs, folded.

    constant: which inputs of dynamo's graph are constant. kinds: what AOTAutograd knows of the graph's inputs.
    """
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    constants: set[Any] = set()
    if len(places) == len(constant) == len(kinds):  # otherwise inputs that share memory became one
        known = zip(places, constant, kinds, strict=True)
        constants = {node for node, is_constant, kind in known if is_constant and not kind.mutates_data}
    return Folded(graph.graph, constants, fold(graph.graph, constants, precision))
