"""Models converted ahead of time: convolutions by cuConv, with batch norm, residual and ReLU folded into them."""

from __future__ import annotations

import copy
import operator as python_operator
from collections import Counter
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.fusion import fuse_conv_bn_eval

import cuconv
from cuconv.nn.modules import Conv2d, why_not
from cuconv.nn.operator import recorded
from cuconv.nn.report import Converted, Report
from cuconv.problem import FP32

RELU = (F.relu, torch.relu, torch.relu_)
ADD = (python_operator.add, python_operator.iadd, torch.add)


def convert(
    model: nn.Module,
    *,
    precision: str = FP32,
    example: Tensor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[nn.Module, Report]:
    """A copy of a model in eval mode whose convolutions are cuConv's, and a report of what was done with each.

    Where torch.fx traces the model, a BatchNorm2d, an addition and a ReLU that follow a convolution are folded into it,
    if nothing else uses what lies between. Where it does not, convolutions are replaced one by one, and what follows
    them in a Sequential is folded. Everything else stays as it is. The model itself is not changed.

    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": inputs and weights may be rounded to TF32
    example    an input of the model on a GPU: the kernels for its size are compiled now, side by side, instead of at
               the first forward
    progress   called with the number of kernels compiled and the number of all

    Raises ValueError for a model in training mode.
    """
    if model.training:
        raise ValueError("the model is in training mode, where batch norm cannot be folded: call model.eval() first")
    report = Report()
    try:
        traced = fx.symbolic_trace(copy.deepcopy(model))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        report.traced, report.why_not_traced = False, (str(error).splitlines() or [type(error).__name__])[0][:200]
        converted = _replace_modules(copy.deepcopy(model), precision, report)
    else:
        converted = _Rewriter(traced, precision, report).run()
    if example is not None:
        _precompile(converted, example, progress)
    return converted.eval(), report


def _precompile(model: nn.Module, example: Tensor, progress: Callable[[int, int], object] | None) -> None:
    """Compile the kernels of a forward of the example, which runs on tensors without data."""
    if not example.is_cuda:
        return
    with torch.no_grad(), recorded() as calls, FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(example))
    for residual in (False, True):
        problems = [problem for problem, has_residual in calls if has_residual == residual]
        cuconv.precompile(problems, example.device.index, residual=residual, progress=progress)


class _Rewriter:
    """Rewrites the graph of a traced model."""

    def __init__(self, model: fx.GraphModule, precision: str, report: Report):
        self._model, self._graph = model, model.graph
        self._precision, self._report = precision, report
        self._modules = dict(model.named_modules())
        self._uses = Counter(node.target for node in self._graph.nodes if node.op == "call_module")

    def run(self) -> fx.GraphModule:
        """Replace every convolution that cuConv takes over."""
        for node in list(self._graph.nodes):
            if node.op == "call_module" and isinstance(self._modules.get(str(node.target)), nn.Conv2d):
                self._convert(node)
        self._graph.eliminate_dead_code()
        self._model.delete_all_unused_submodules()
        self._graph.lint()
        self._model.recompile()
        return self._model

    def _convert(self, node: fx.Node) -> None:
        name = str(node.target)
        conv = self._modules[name]
        assert isinstance(conv, nn.Conv2d)
        if reason := why_not(conv):
            self._report.rows.append(Converted(name, reason=reason))
            return
        folded: list[str] = []
        chain, residual = [node], None
        if (norm := self._batch_norm_after(node)) is not None:
            conv = fuse_conv_bn_eval(conv, self._modules[str(norm.target)])
            folded.append("batch norm")
            chain.append(norm)
        if (add := self._sum_after(chain[-1])) is not None and not self._writes_between(node, add, chain):
            residual = next(operand for operand in add.args[:2] if operand is not chain[-1])
            folded.append("residual")
            chain.append(add)
        if (relu := _only_user(chain[-1])) is not None and self._is_relu(relu):
            folded.append("relu")
            chain.append(relu)
        place = self._add_module(name, Conv2d(conv, relu="relu" in folded, precision=self._precision))
        # Where the convolution was, since later nodes may write to its input; with a residual, where that is known.
        with self._graph.inserting_before(node if residual is None else chain[-1]):
            operands = (node.args[0],) if residual is None else (node.args[0], residual)
            fused = self._graph.call_module(place, operands)
        chain[-1].replace_all_uses_with(fused)
        for replaced in reversed(chain):
            self._graph.erase_node(replaced)
        self._report.rows.append(Converted(name, tuple(folded)))

    def _add_module(self, name: str, module: Conv2d) -> str:
        """Put a module in the place of a convolution, or beside it where the model calls that one several times."""
        place = name
        if self._uses[name] > 1:
            place = next(f"{name}_{i}" for i in range(self._uses[name]) if f"{name}_{i}" not in self._modules)
        parent, _, leaf = place.rpartition(".")
        setattr(self._model.get_submodule(parent), leaf, module)
        if place != name:
            self._modules[place] = module
        return place

    def _batch_norm_after(self, node: fx.Node) -> fx.Node | None:
        user = _only_user(node)
        if user is None or user.op != "call_module":
            return None
        norm = self._modules.get(str(user.target))
        folds = type(norm) is nn.BatchNorm2d and norm.running_mean is not None and user.args == (node,)
        return user if folds else None

    def _sum_after(self, node: fx.Node) -> fx.Node | None:
        """The addition of a node and of another tensor, if it is the only user of the node."""
        user = _only_user(node)
        if user is None or user.kwargs or len(user.args) != 2:
            return None
        adds = (user.op == "call_function" and user.target in ADD) or (
            user.op == "call_method" and user.target in ("add", "add_")
        )
        tensors = all(isinstance(operand, fx.Node) for operand in user.args) and user.args[0] is not user.args[1]
        # What is added in place must be the convolution's own output.
        in_place = user.target in (python_operator.iadd, "add_")
        return user if adds and tensors and (not in_place or user.args[0] is node) else None

    def _writes_between(self, first: fx.Node, last: fx.Node, chain: list[fx.Node]) -> bool:
        """Whether a node between two, other than those of a chain, writes to its operand."""
        node = first.next
        while node is not last:
            module = self._modules.get(str(node.target)) if node.op == "call_module" else None
            by_name = node.op == "call_method" and str(node.target).endswith("_")
            by_function = node.op == "call_function" and getattr(node.target, "__name__", "").startswith("i")
            writes = getattr(module, "inplace", False) or by_name or by_function or node.kwargs.get("inplace", False)
            if writes and node not in chain:
                return True
            node = node.next
        return False

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self._modules.get(str(node.target))) is nn.ReLU
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        return node.op == "call_function" and node.target in RELU


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _replace_modules(model: nn.Module, precision: str, report: Report, prefix: str = "") -> nn.Module:
    """Replace the convolutions of a model that torch.fx cannot trace, and fold what follows them in a Sequential."""
    children = list(model.named_children())
    for place, (name, child) in enumerate(children):
        full = f"{prefix}{name}"
        if not isinstance(child, nn.Conv2d):
            _replace_modules(child, precision, report, f"{full}.")
        elif reason := why_not(child):
            report.rows.append(Converted(full, reason=reason))
        else:
            after = children[place + 1 :] if type(model) is nn.Sequential else []
            setattr(model, name, _folded(model, child, after, precision, report, full))
    return model


def _folded(
    parent: nn.Module,
    conv: nn.Conv2d,
    after: Iterable[tuple[str, nn.Module]],
    precision: str,
    report: Report,
    name: str,
) -> Conv2d:
    """The convolution with the batch norm and ReLU that follow it, which become identities."""
    folded: list[str] = []
    for place, module in after:
        if type(module) is nn.BatchNorm2d and module.running_mean is not None and not folded:
            conv, folded = fuse_conv_bn_eval(conv, module), ["batch norm"]
        elif type(module) is nn.ReLU:
            folded.append("relu")
        else:
            break
        setattr(parent, place, nn.Identity())
        if folded[-1] == "relu":
            break
    report.rows.append(Converted(name, tuple(folded)))
    return Conv2d(conv, relu="relu" in folded, precision=precision)
