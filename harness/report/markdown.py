"""Tables in markdown that read as plain text too, and how a figure is printed in them."""

from __future__ import annotations

import math

NONE = "-"


def markdown(header: list[str], rows: list[list], left: tuple[int, ...] = (0,)) -> str:
    """A markdown table, padded so that it reads as plain text too; all columns but those of `left` aligned right."""
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]

    def line(row: list[str]) -> str:
        padded = [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def times(speedup: float) -> str:
    """A speedup as it is printed."""
    return f"{speedup:.2f}x" if math.isfinite(speedup) else NONE
