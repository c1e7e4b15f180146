"""A reader of tables and a check of figures, for the tests of reports."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a markdown table by their first cell, or by their first two where the first repeats."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    body = [[cell.strip() for cell in line] for line in lines]
    first = [row[0] for row in body]
    return {row[0] if first.count(row[0]) == 1 else f"{row[0]} {row[1]}": row[1:] for row in body}


def collisions(figure):
    """The texts of a drawn figure that overlap another text, a dot or a bar, and those that the figure cuts off."""
    FigureCanvasAgg(figure).draw()
    hidden, dots, bars = set(), [], []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                hidden |= set() if low <= tick.get_loc() <= high else {tick.label1, tick.label2}
        bars += [(bar, bar.get_window_extent()) for bar in axes.patches]
        lines = [line for line in axes.lines if line.get_marker() == "o"]
        dots += [tuple(point) for line in lines for point in axes.transData.transform(line.get_xydata())]
    texts = [text for text in set(figure.findobj(Text)) - hidden if text.get_visible() and text.get_text()]
    boxes = [(text, text.get_window_extent()) for text in texts]
    assert len(boxes) > 4, "the texts of the figure are found"
    pairs = [*combinations(boxes, 2), *((text, bar) for text in boxes for bar in bars)]
    return [
        *((str(a), str(b)) for (a, one), (b, other) in pairs if _overlap(one, other)),
        *((str(text), dot) for text, box in boxes for dot in dots if box.contains(*dot)),
        *(str(text) for text, box in boxes if not _overlap(box, figure.bbox, box.width - 1, box.height - 1)),
    ]


def _overlap(one, other, wide=1.0, tall=1.0):
    """Whether two boxes share more than a number of pixels in each direction."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    return across > wide and min(one.y1, other.y1) - max(one.y0, other.y0) > tall
