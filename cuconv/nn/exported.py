"""Programs of torch.export, folded: for torch.export.save, AOTInductor and other tools that take exported programs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

from cuconv.core.problem import FP32
from cuconv.nn import fusions
from cuconv.nn.folded import compiled, constant_graph
from cuconv.nn.operator import check_precision
from cuconv.nn.padding import in_numbers, padded
from cuconv.nn.pooling import fold_pools
from cuconv.nn.rows import keep_rows
from cuconv.nn.traced import BATCH_NORM
from cuconv.nn.zeros import fold_zeros

aten = torch.ops.aten
STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def fold(program: ExportedProgram, *, precision: str = FP32) -> ExportedProgram:
    """A copy of an exported program whose convolutions are `torch.ops.cuconv.conv2d`, with what follows folded in.

    The sum with a shortcut and an activation become arguments of the operator, and a sum of convolutions of one input
    becomes one call. A batch norm is multiplied into the weights, and all else that depends on weights alone is
    computed now, too: such results are buffers `folded_0`, `folded_1`, ... of the copy. Sizes that the program leaves
    free stay free. Convolutions that cuConv does not compute stay torch's, such as those of a program that was exported
    on a CPU.

    A process that loads the copy, or a package that AOTInductor has made of it, imports cuconv.nn first.

    program    what torch.export.export returns for a model in eval mode
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32

    Raises TypeError for what is no exported program, and ValueError for an unknown precision.
    """
    check_precision(precision)
    if not isinstance(program, ExportedProgram):
        raise TypeError(f"program is of type {type(program).__name__}: fold takes what torch.export.export returns")
    with torch.no_grad():
        functional = program.run_decompositions({**fusions.decompositions(precision), **CONVOLUTIONS})
    graph, signature = functional.graph, functional.graph_signature
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    kinds = {inputs[spec.arg.name]: spec for spec in signature.input_specs}
    written = set(signature.buffers_to_mutate.values())
    tensors: dict[str, Any] = {**functional.constants, **functional.state_dict}
    tensors |= {name: tensors[name].clone() for name in written}
    state = {node: spec for node, spec in kinds.items() if spec.kind in STATE and spec.target not in written}

    fold_zeros(graph)
    keep_rows(graph)
    constants: set[fx.Node] = set(state)
    fusions.add_constants(graph, constants)
    fold_pools(graph, constants)
    fusions.fold_convolutions(graph, constants)
    for node in graph.nodes:
        if node.target is BATCH_NORM:  # no convolution precedes it
            node.target, node.args = aten.batch_norm.default, (*node.args[:5], False, 0.0, node.args[5], True)
    values = _read_results(graph, constants, {node: tensors[str(spec.target)] for node, spec in state.items()})
    taken = {name.partition(".")[0] for name in tensors}  # by buffers, parameters and modules of the model
    names = (name for name in map("folded_{}".format, count()) if name not in taken)
    for node, value in values.items():
        name = next(names)
        kinds[node] = InputSpec(InputKind.BUFFER, TensorArgument(node.name), name, persistent=True)
        tensors[name] = value
    for node in [node for node in state if not node.users]:
        graph.erase_node(node)
    _sign(signature, graph, kinds)

    used = {spec.target for spec in signature.input_specs}
    kept = {*functional.state_dict, *(kinds[node].target for node in values)} & used
    functional.graph_module.recompile()
    return ExportedProgram(
        functional.graph_module,
        graph,
        signature,
        {name: tensors[name] for name in tensors if name in kept},
        functional.range_constraints,
        functional.module_call_graph,
        functional.example_inputs,
        {name: tensors[name] for name in functional.constants if name in used},
        verifiers=functional.verifiers,
    )


def _sign(signature: ExportGraphSignature, graph: Any, kinds: dict[fx.Node, InputSpec]) -> None:
    """Write the inputs and outputs that a graph has now into its signature. kinds: what each input is."""
    signature.input_specs = [kinds[node] for node in graph.nodes if node.op == "placeholder"]
    for output, node in zip(signature.output_specs, graph.output_node().args[0], strict=True):
        if isinstance(node, fx.Node):
            output.arg = replace(output.arg, name=node.name)


def _convolved(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Any:
    if input.dim() != weight.dim():  # one image or signal, which this operator of torch does not take
        return NotImplemented
    return aten.convolution(input, weight, bias, stride, padding, dilation, False, [0] * (weight.dim() - 2), groups)


def _convolved_by_words(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1,),
    padding: str = "valid",
    dilation: Any = (1,),
    groups: int = 1,
) -> Any:
    pads = in_numbers(weight, stride, padding, dilation)
    if pads is None or input.dim() != weight.dim():
        return NotImplemented
    input, pads = padded(input, pads, weight.dim() - 2)
    return _convolved(input, weight, bias, stride, pads, dilation, groups)


def _transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1,),
    padding: Any = (0,),
    output_padding: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> Any:
    if input.dim() != weight.dim():
        return NotImplemented
    return aten.convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


CONVOLUTIONS: dict[Any, Any] = {
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default), _convolved),
    **dict.fromkeys((aten.conv1d.padding, aten.conv2d.padding), _convolved_by_words),
    **dict.fromkeys((aten.conv_transpose1d.default, aten.conv_transpose2d.input), _transposed),
}


def _read_results(graph: fx.Graph, constants: set[Any], state: dict[Any, Tensor]) -> dict[fx.Node, Tensor]:
    """Compute what depends on the state alone, and make of each result an input of the graph, with its value."""
    computed = [node for node in graph.nodes if node in constants and node.op == "call_function"]
    results = [node for node in computed if not constants.issuperset(node.users)]
    _, function = compiled(constant_graph(graph, constants, results))
    with torch.no_grad():
        values = function(None, *(state[node] for node in graph.nodes if node in state))
    first = next(node for node in graph.nodes if node not in state)
    found = {}
    for number, (node, value) in enumerate(zip(results, values, strict=True)):
        with graph.inserting_before(first):
            read = graph.placeholder(f"folded_{number}")
        read.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(read, lambda user: user not in constants)
        found[read] = value
    for node in reversed(computed):
        graph.erase_node(node)
    return found
