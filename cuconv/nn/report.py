"""What convert() did with each layer of a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Converted:
    """A layer by its name in the model: what was folded into it, or why it stays with torch."""

    name: str
    folded: tuple[str, ...] = ()
    reason: str = ""
    kind: str = "conv"


@dataclass(slots=True)
class Report:
    """The convolutions and fully connected layers of a model, in order. Prints as a table.

    `traced` says whether torch.fx could trace the model. why_not_traced is the reason otherwise, and
    why_not_precompiled the reason why kernels compile at the first forward in spite of an example.
    """

    rows: list[Converted] = field(default_factory=list)
    traced: bool = True
    why_not_traced: str = ""
    why_not_precompiled: str = ""

    @property
    def replaced(self) -> list[Converted]:
        """The layers with a module of cuConv, which leaves to torch what it does not compute, such as CPU tensors."""
        return [row for row in self.rows if not row.reason]

    @property
    def left(self) -> list[Converted]:
        """The layers that stay with torch."""
        return [row for row in self.rows if row.reason]

    def __str__(self) -> str:
        """The counts and a line for each layer."""
        width = max((len(row.name) for row in self.rows), default=0)
        lines = [f"{len(self.replaced)} of {len(self.rows)} layers replaced"]
        if not self.traced:
            lines.append(f"module by module, as the model is not traced: {self.why_not_traced}")
        if self.why_not_precompiled:
            lines.append(f"some kernels compile at the first forward: {self.why_not_precompiled}")
        for row in self.rows:
            what = f"left: {row.reason}" if row.reason else " + ".join((row.kind, *row.folded))
            lines.append(f"  {row.name:{width}}  {what}")
        return "\n".join(lines)
