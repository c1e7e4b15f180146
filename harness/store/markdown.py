"""Tables in markdown that read as plain text too, and how numbers are printed in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

NONE = "-"
Column = tuple[str, Callable[[Any], object]]


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]], left: Sequence[int] = (0,)) -> str:
    """A markdown table, padded so that it reads as plain text too. The columns in `left` are aligned left."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]

    def line(row: list[str]) -> str:
        padded = [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def tabulate(
    head: str, groups: Iterable[tuple[object, Any]], columns: Sequence[Column], left: Sequence[int] = (0,)
) -> str:
    """A markdown table of columns: a row for each group (name, members), with the names below `head`.

    columns: the header of each other column, and the function that makes a cell of the group's members.
    """
    rows = [[name, *(cell(members) for _, cell in columns)] for name, members in groups]
    return markdown([head, *(header for header, _ in columns)], rows, left)


def times(ratio: float, digits: int = 2) -> str:
    """A ratio such as a speedup: "2.53x", or "-" where there is none."""
    return f"{ratio:.{digits}f}x" if math.isfinite(ratio) else NONE


def units(error: float) -> str:
    """An error in units of 1e-7, which no browser breaks at an exponent's sign: "1.2", "10,900", or "-" for NaN."""
    if math.isnan(error):
        return NONE
    return f"{error / 1e-7:,.1f}" if error < 1e-4 else f"{error / 1e-7:,.0f}"


def extent(rows: int, columns: int) -> str:
    """A size in two axes as labels have it: "3" where both are 3, and "1x7"."""
    return str(rows) if rows == columns else f"{rows}x{columns}"


def of(count: int, total: int) -> str:
    """A count of a total: "57 of 86", or "-" of nothing."""
    return f"{count} of {total}" if total else NONE


def share(count: int, total: int) -> str:
    """A count of a total with its percentage: "50 of 602 (8.31%)", or "-" of nothing."""
    return f"{of(count, total)} ({count / total:.2%})" if total else NONE
