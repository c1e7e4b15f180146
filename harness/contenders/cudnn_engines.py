"""cuDNN's graph API: every execution plan of its heuristics, and one of each engine that they leave out.

In FP32 each plan is an algorithm of its own. In the other precisions, whose engines have dozens of plans each, an
engine is an algorithm, and its plans are the ways among which the sweep chooses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cuconv.core.problem import ConvProblem
from cuconv.runtime.arrays import dense_strides
from harness.contenders import base
from harness.contenders.base import (
    PLAIN,
    Layout,
    NotRunnable,
    Offer,
    Operands,
    Prepared,
    Unavailable,
)
from harness.contenders.workspace import Workspace
from harness.precision import FP32, HALVES
from harness.stopwatch import timing
from harness.stopwatch.timing import TooSlow
from harness.stopwatch.verify import Verifier

REMEDY = "pip install 'nvidia-cudnn-frontend<1.29'"  # later versions need a compiler too
DESELECTED = "Deselecting execution plan"  # in the error of building a plan that a numeric note excludes
COLLECT_EVERY = 8  # cases


class Contender(base.Contender):
    """cuDNN's engines. Raises Unavailable where the frontend package or its library is missing."""

    def __init__(self, precision: str = FP32) -> None:
        super().__init__(precision)
        try:
            import cudnn
        except ImportError as error:
            raise Unavailable(f"cuDNN's graph API cannot be imported ({error}): {REMEDY}") from None
        theirs, ours = _version(cudnn), torch.backends.cudnn.version()
        if theirs != ours:
            raise Unavailable(
                f"nvidia-cudnn-frontend found cuDNN {theirs}, not torch's {ours}: keep torch's library only"
            )
        self._cudnn = cudnn
        self._handle = cudnn.create_handle()
        self._workspace = Workspace()
        self._notes = _Notes(cudnn, self._handle)
        self._cases = 0
        self._algorithms: frozenset[str] | None = None
        self._ready: tuple[ConvProblem | None, list[_Built]] = None, []

    def fastest(self, problem: ConvProblem, operands: Operands, limit: int, runs: int = 3) -> Plan:
        """The plan with the shortest hot time on a case, of those that compute it right within a limit of workspace.

        The contender must be of FP32, the tensors dense and NCHW.
        operands: tensors of the case, whose output is overwritten. limit: in bytes. runs: of each plan. Raises
        NotRunnable where no plan is left.
        """
        times_us = self._times_us(problem, operands, limit, runs)
        if not times_us:
            raise NotRunnable("unsupported", "no engine computes it")
        # In a new graph, since a graph keeps all plans that it has built. A plan is found again by its name: the
        # frontend cannot pass on all knobs that it returns.
        plans = _Plans(self._cudnn, self._handle, self._workspace, problem)
        return Plan(plans, plans.names.index(min(times_us, key=times_us.__getitem__)))

    def _times_us(self, problem: ConvProblem, operands: Operands, limit: int, runs: int) -> dict[str, float]:
        """The hot times by name of the plans that compute a case right within a limit of workspace."""
        plans = _Plans(self._cudnn, self._handle, self._workspace, problem)
        plans.exclude_other_precision(self.precision)
        device = operands.input.device
        verifier = Verifier(problem, operands.input, operands.weight, torch.Generator(device).manual_seed(0))
        times_us: dict[str, float] = {}
        for name, index, failure in plans.distinct():
            if failure or plans.workspace_bytes(index) > limit:
                continue
            with suppress(NotRunnable, TooSlow):
                call = plans.prepare(index, operands).call
                call()
                timed = timing.measure(call, runs, device)
                if verifier.errors(timed.output).acceptable:
                    times_us[name] = min(timed.runs_us)
        return times_us

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Take in which algorithms are measured, None for all: no plan of another is built."""
        self._algorithms = algorithms

    def get_ready(self, problem: ConvProblem) -> None:
        """Build the plans of a case, all of them, because only a build tells the precision.

        The frontend holds Python's interpreter lock while it builds: threads would build one after the other.
        """
        self._ready = problem, self._built(problem)

    def _built(self, problem: ConvProblem) -> list[_Built]:
        """The plans of a case in each layout of the precision."""
        found = []
        for layout in self.layouts:
            plans = _Plans(self._cudnn, self._handle, self._workspace, problem, layout, self.epilogue)
            plans.exclude_other_precision(self.precision)
            distinct = plans.distinct(partial(self._is_measured, layout))
            notes = self._notes.of([plans.engine(index) for _, index, _ in distinct], problem, layout, self.epilogue)
            found.append(_Built(layout, plans, distinct, notes))
        return found

    def _algorithm(self, plan: str, layout: Layout) -> str:
        """The name of the algorithm that a plan belongs to."""
        return f"{plan if self.precision == FP32 else plan.split('_')[0]}{layout.suffix}"

    def _is_measured(self, layout: Layout, plan: str) -> bool:
        return self._algorithms is None or self._algorithm(plan, layout) in self._algorithms

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """One offer for each distinct plan name, or engine, of the precision.

        Plans of the other precision have no row. Plans of this precision that cannot be built have one.
        """
        # The frontend's graphs are in reference cycles, and the collector does not see the memory of their plans.
        if self._cases % COLLECT_EVERY == 0:
            gc.collect()
        self._cases += 1

        (ready_for, ready), self._ready = self._ready, (None, [])
        if ready_for != problem:
            ready = self._built(problem)
        return [offer for built in ready for offer in self._offers(built, operands.laid_out(built.layout))]

    def _offers(self, built: _Built, operands: Operands) -> Iterator[Offer]:
        """The offers of the plans of one layout, on tensors of this layout."""
        ways: dict[str, list[Callable[[], Prepared]]] = {}
        for (name, index, failure), noted in zip(built.distinct, built.notes, strict=True):
            detail = ": ".join(part for part in ("" if self.precision == FP32 else name, noted) if part)
            way = partial(built.plans.prepare, index, operands, failure, detail)
            ways.setdefault(self._algorithm(name, built.layout), []).append(way)
        for algorithm, (first, *others) in ways.items():
            yield Offer("cudnn_engine", algorithm, first, self.precision, tuple(others))


@dataclass(frozen=True, slots=True)
class _Built:
    """The plans of a case in one layout: what `_Plans.distinct` returns of them, and the notes of each in words."""

    layout: Layout
    plans: _Plans
    distinct: list[tuple[str, int, str]]
    notes: list[str]


def _version(cudnn: Any) -> int | None:
    try:
        return cudnn.backend_version()
    except RuntimeError:  # the frontend found no library
        return None


class _Notes:
    """cuDNN's numerical notes on its engines, each asked for once in each layout.

    The frontend can select plans by a note and cannot list the notes of a plan. So each note is asked for on a graph of
    its own.
    """

    def __init__(self, cudnn: Any, handle: Any):
        self._cudnn, self._handle = cudnn, handle
        self._failures = _failures(cudnn)
        self._known: dict[tuple[str, int], dict[str, bool]] = {}  # by layout and engine, then by note

    def of(self, engines: Sequence[tuple[int, Any]], problem: ConvProblem, layout: Layout, epilogue: str) -> list[str]:
        """The notes of each engine in words; engines: numbers and knobs of plans for a problem in a layout."""
        if new := {engine: knobs for engine, knobs in engines if (layout.suffix, engine) not in self._known}:
            self._known |= {(layout.suffix, engine): {} for engine in new}
            for name, note in self._cudnn.numerical_note.__members__.items():
                with suppress(*self._failures):
                    for engine, has_it in self._asked(note, new, problem, layout, epilogue):
                        self._known[layout.suffix, engine][name] = has_it
        return [_in_words(self._known[layout.suffix, engine]) for engine, _ in engines]

    def _asked(
        self, note: Any, engines: dict[int, Any], problem: ConvProblem, layout: Layout, epilogue: str
    ) -> Iterator[tuple[int, bool]]:
        """The engines for which a plan can be made, each with whether it has a note."""
        graph, _ = _graph(self._cudnn, self._handle, problem, layout, epilogue)
        listed = []
        for engine, knobs in engines.items():
            with suppress(*self._failures):
                graph.create_execution_plan(engine, knobs)
                listed.append(engine)
        graph.select_numeric_notes([note])
        for index, engine in enumerate(listed):
            yield engine, DESELECTED not in _built(graph, index, self._failures)


def _in_words(notes: dict[str, bool]) -> str:
    """The notes that an engine has, of those that it was asked for; empty where it was asked for none."""
    names = ", ".join(name for name, has_it in notes.items() if has_it)
    return f"numerical notes {names}" if names else "no numerical note" if notes else ""


class Plan:
    """One plan of an FP32 case, for dense NCHW tensors at any address."""

    def __init__(self, plans: _Plans, index: int):
        """Raises NotRunnable where the plan cannot be built, or has no room for its workspace."""
        if failure := plans.built(index):
            raise NotRunnable("unsupported", failure)
        self._plans, self._index, self._workspace = plans, index, plans.workspace(index)

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
        """Enqueue the convolution on the current stream."""
        self._plans.execute(self._index, self._workspace, input, weight, output)


def _failures(cudnn: Any) -> tuple[type[Exception], ...]:
    """The errors that the frontend raises where a plan cannot be made, built or run."""
    return (cudnn.cudnnGraphNotSupportedError, RuntimeError)


class _Plans:
    """The graph of one case with its plans."""

    def __init__(
        self,
        cudnn: Any,
        handle: Any,
        workspace: Workspace,
        problem: ConvProblem,
        layout: Layout = PLAIN,
        epilogue: str = "",
    ):
        self._cudnn, self._handle, self._workspace = cudnn, handle, workspace
        self._graph, self._tensors = _graph(cudnn, handle, problem, layout, epilogue)
        self._create()

    def _create(self) -> None:
        """Add the plans of all heuristics, then one plan of each engine that they left out."""
        graph, modes = self._graph, self._cudnn.heur_mode
        with suppress(self._cudnn.cudnnGraphNotSupportedError):  # an engine may run a case that no heuristic knows
            graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        known = {graph.get_engine_and_knobs_at_index(i)[0] for i in range(graph.get_execution_plan_count())}
        for engine in range(graph.get_engine_count()):
            if engine not in known:
                with suppress(*_failures(self._cudnn)):  # the engine has no configuration for this case
                    graph.create_execution_plan(engine, {})

    def exclude_other_precision(self, precision: str) -> None:
        """Exclude the plans of the other precision by cuDNN's notes on them, before any plan is built.

        In half precision no plan is excluded.

        Engine 58, a route to cuBLAS, is of both precisions: it has the note TENSOR_CORE alone, and rounds to TF32
        where it is allowed to.
        """
        note = self._cudnn.numerical_note
        if precision == FP32:
            self._graph.deselect_numeric_notes([note.DOWN_CONVERT_INPUTS])
        elif precision not in HALVES:
            self._graph.select_numeric_notes([note.TENSOR_CORE])

    @property
    def names(self) -> list[str]:
        """The name of every plan, by index."""
        return list(map(self._graph.get_plan_name_at_index, range(self._graph.get_execution_plan_count())))

    def distinct(self, wanted: Callable[[str], bool] = lambda name: True) -> list[tuple[str, int, str]]:
        """Name, index and reason of failure ("" where there is none) of every plan that is not excluded.

        Plans whose names are not wanted are not built.
        """
        found: dict[str, tuple[str, int, str]] = {}
        for index, name in enumerate(self.names):
            if name not in found and wanted(name):
                failure = self.built(index)
                if DESELECTED not in failure:
                    found[name] = (name, index, failure)
        return list(found.values())

    def built(self, index: int) -> str:
        """Build a plan; returns why it could not be built, "" where it was."""
        return _built(self._graph, index, _failures(self._cudnn))

    def engine(self, index: int) -> tuple[int, Any]:
        """The number of a plan's engine, and its knobs."""
        engine: tuple[int, Any] = self._graph.get_engine_and_knobs_at_index(index)
        return engine

    def workspace_bytes(self, index: int) -> int:
        """The size of the workspace of a plan that was built."""
        size: int = self._graph.get_workspace_size_plan_at_index(index)
        return size

    def workspace(self, index: int) -> torch.Tensor | None:
        """A buffer for a plan that was built; None where it needs none. Raises NoMemory, a NotRunnable."""
        size = self.workspace_bytes(index)
        return self._workspace.reserve(size) if size else None

    def prepare(self, index: int, operands: Operands, failure: str = "", detail: str = "") -> Prepared:
        """The call of a plan on tensors of the layout.

        Raises NotRunnable where it could not be built, for the reason `failure`, or has no room for its workspace.
        """
        if failure:
            raise NotRunnable("unsupported", failure)
        every = operands.input, operands.weight, operands.output, operands.bias, operands.residual
        tensors = [tensor for tensor in every if tensor is not None]
        workspace = self.workspace(index)

        def call() -> torch.Tensor:
            self.execute(index, workspace, *tensors)
            return operands.output

        return Prepared(call, self.workspace_bytes(index), detail)

    def execute(self, index: int, workspace: torch.Tensor | None, *tensors: torch.Tensor) -> None:
        """Enqueue a plan on the current stream, on input, weight, output, and bias and residual if any, of the layout.

        Raises NotRunnable where cuDNN refuses or fails.
        """
        addresses = {name: tensor.data_ptr() for name, tensor in zip(self._tensors, tensors, strict=True)}
        pointer = None if workspace is None else workspace.data_ptr()
        self._cudnn.set_stream(self._handle, torch.cuda.current_stream().cuda_stream)
        try:
            self._graph.execute_plan_at_index(addresses, pointer, index, handle=self._handle)
        except _failures(self._cudnn) as error:
            reason = _one_line(error)
            raise NotRunnable("unsupported" if "NOT_SUPPORTED" in reason else "error", reason) from None


def _built(graph: Any, index: int, failures: tuple[type[Exception], ...]) -> str:
    """Build a plan; returns why it could not be built, "" where it was."""
    try:
        graph.build_plan_at_index(index)
    except failures as error:
        return _one_line(error)
    return ""


def _graph(cudnn: Any, handle: Any, problem: ConvProblem, layout: Layout, epilogue: str) -> tuple[Any, tuple[Any, ...]]:
    """The operation graph of a case in a layout, and its tensors in the order of `Operands`; sums are FP32."""
    real, last = cudnn.data_type.FLOAT, layout.channels_last
    halves = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}
    kind = halves.get(layout.dtype, real)
    graph = cudnn.pygraph(handle=handle, io_data_type=kind, intermediate_data_type=real, compute_data_type=real)

    def tensor(name: str, shape: Sequence[int]) -> Any:
        strides = list(dense_strides(tuple(shape), last))  # torch's own are arbitrary where a size is 1
        return graph.tensor(name=name, dim=list(shape), stride=strides, data_type=kind)

    x, w = tensor("input", problem.input_shape), tensor("weight", problem.weight_shape)
    added = [tensor("bias", (1, problem.m, 1, 1))] if epilogue else []
    added += [tensor("residual", problem.output_shape)] if epilogue == "bias_add_relu" else []
    # Groups follow from the channels of input and weight.
    steps = {name: list(problem.geometry[name]) for name in ("padding", "stride", "dilation")}
    y = graph.conv_fprop(image=x, weight=w, **steps, name="conv")
    for other in reversed(added):  # the bias last, as in torch's calls: the order that cuDNN's own fused call has
        y = graph.add(a=y, b=other)
    y = graph.relu(input=y) if added else y
    # Without strides cuDNN would infer channels last.
    shape = problem.output_shape
    y.set_output(True).set_data_type(kind).set_dim(list(shape)).set_stride(list(dense_strides(shape, last)))
    graph.validate()
    graph.build_operation_graph()
    return graph, (x, w, y, *added)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
