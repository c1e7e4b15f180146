"""What convert() did with each layer of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Calls(Protocol):
    """The calls of a converted model until now: those that ran in graphs, wholly or partly, or its own code."""

    folded: int
    partly: int
    own: int

    def __len__(self) -> int:
        """The number of graphs."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A layer by its name in the model: what was folded into it, or why it stays with torch."""

    name: str
    folded: tuple[str, ...] = ()
    reason: str = ""
    kind: str = "conv"
    flop: int = 0  # per call with the example; 0 without a graph, and where sizes depend on data


@dataclass(slots=True)
class Report:
    """The convolutions and fully connected layers of a model, in order. Prints as a table.

    captured              whether there are graphs of the model, into which what follows a layer is folded
    why_not_captured      the reason otherwise
    breaks                why torch's compiler made several graphs of a call, and left the code between them to Python
    why_one_batch         why there are graphs for the example's number of images alone; "" where others have graphs too
    why_not_compared      the reason why the outputs of both models were not compared; "" where they were and agreed
    why_not_precompiled   the reason why kernels compile in the background of the first forwards
    packed_bytes          device memory of the weights that are packed for the example
    """

    rows: list[Converted] = field(default_factory=list)
    captured: bool = True
    why_not_captured: str = ""
    why_not_compared: str = ""
    why_not_precompiled: str = ""
    packed_bytes: int = 0
    breaks: list[str] = field(default_factory=list)
    why_one_batch: str = ""
    graphs: Calls | None = field(default=None, repr=False)

    @property
    def folded_calls(self) -> int:
        """The number of calls of the converted model, and of its copies, that ran in graphs until now."""
        return 0 if self.graphs is None else self.graphs.folded

    @property
    def partly_folded_calls(self) -> int:
        """The number of calls that ran the model's own code for a convolution after a graph break."""
        return 0 if self.graphs is None else self.graphs.partly

    @property
    def own_calls(self) -> int:
        """The number of calls that ran the model's own code, by torch's kernels, since no graph stands for them."""
        return 0 if self.graphs is None else self.graphs.own

    @property
    def replaced(self) -> list[Converted]:
        """The layers that are cuConv's in the graphs."""
        return [row for row in self.rows if not row.reason]

    @property
    def left(self) -> list[Converted]:
        """The layers that stay with torch."""
        return [row for row in self.rows if row.reason]

    @property
    def share(self) -> float | None:
        """The part of the layers' floating-point operations that is cuConv's; None where the model is not captured."""
        total = sum(row.flop for row in self.rows)
        return sum(row.flop for row in self.replaced) / total if total else None

    def __str__(self) -> str:
        """The counts and a line for each layer."""
        width = max((len(row.name) for row in self.rows), default=0)
        share = "" if self.share is None else f", {self.share:.1%} of their arithmetic"
        lines = [f"{len(self.replaced)} of {len(self.rows)} layers replaced{share}"]
        if self.packed_bytes:
            lines.append(f"packed weights take {self.packed_bytes / 2**20:.1f} MiB")
        for what, why in (
            ("torch computes everything, as there is no graph", self.why_not_captured),
            *(("torch's compiler broke a graph", reason) for reason in self.breaks),
            ("other numbers of images run the model's own code", self.why_one_batch),
            ("the outputs were not compared", self.why_not_compared),
            ("some kernels compile in the background of the first forwards", self.why_not_precompiled),
        ):
            if why:
                lines.append(f"{what}: {why}")
        if self.folded_calls or self.partly_folded_calls or self.own_calls:
            partly = f", {self.partly_folded_calls} in part" if self.partly_folded_calls else ""
            lines.append(f"calls in graphs: {self.folded_calls}{partly}; by the model's own code: {self.own_calls}")
        for row in self.rows:
            what = f"left: {row.reason}" if row.reason else " + ".join((row.kind, *row.folded))
            lines.append(f"  {row.name:{width}}  {what}")
        return "\n".join(lines)
