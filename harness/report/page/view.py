"""The layout of the page: Bokeh's tables, plots and widgets over the columns of `harness.report.page`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.layouts import column, row
from bokeh.models import (
    BooleanFilter,
    CDSView,
    CheckboxButtonGroup,
    ColumnDataSource,
    CustomJS,
    DataTable,
    Div,
    FactorRange,
    HoverTool,
    NumberFormatter,
    ScientificFormatter,
    Select,
    TableColumn,
    TextInput,
)
from bokeh.plotting import figure

from harness.contenders.registry import COLOURS
from harness.experiments.networks.rows import CUCONV, GRAPH, OK, TORCH_CONTENDERS, label
from harness.precision import FP32, TF32
from harness.report import page
from harness.sweep.comparisons import Results, each
from harness.sweep.provenance import provenance

HERE = Path(__file__).parent
ALL = "all networks"
WIDTH, HALF = 1340, 660
RED, GREYS = COLOURS["cuconv"], ("#525252", "#7f7f7f", "#a6a6a6", "#cccccc")
FILTER_COLOURS = {"1x1": "#3182bd", "3x3": "#31a354", "5x5": "#fd8d3c"}
OTHER_COLOUR = "#756bb1"
TIMES = {"mean_us": "hot, us", "separated_us": "separated, us", "cold_us": "cold, us"}  # columns of a case's algorithms
SIZES = "HW-N-K-M-C: input size, batch, filter size, filters, channels"


def document(results: Results, networks: Results | None) -> Document:
    """The whole page of a sweep, with whole networks below it where these were measured."""
    columns, times, details = page.case_columns(results), page.rival_times(results), page.details(results)
    best = next(iter(times))
    columns["rival_us"] = list(times[best])
    columns["speedup"] = [
        None if theirs is None else theirs / ours for ours, theirs in zip(columns["ours_us"], times[best], strict=True)
    ]
    columns["colour"] = [_colour(size) for size in columns["filter"]]
    cases, shown = ColumnDataSource(columns), BooleanFilter(booleans=[True] * len(columns["case"]))
    table = _cases(cases, shown, results.shown(results.subject))
    summary = Div(text=page.headline(columns, times[best]), styles={"font-size": "16px"})
    ours = results.shown(results.subject)
    heading = Div(text=_heading(results, ours))
    widgets = _widgets(columns, times, table, shown, summary)
    parts = [
        heading,
        row(*widgets[:3]),
        row(*widgets[3:]),
        summary,
        row(table, _detail(cases, details)),
        row(_speedups(cases, shown, ours), _roofline(results, cases, shown, ours)),
    ]
    if networks is not None:
        parts.append(_networks(networks))
    made = Document(title=f"cuConv: sweep {results.sweep} on {results.device}")
    made.add_root(column(*parts, width=WIDTH))
    made.js_on_event(DocumentReady, CustomJS(args={"cases": cases}, code="cases.selected.indices = [0]"))
    return made


def _colour(size: str) -> str:
    return FILTER_COLOURS.get(size, OTHER_COLOUR)


def _heading(results: Results, ours: str) -> str:
    return (
        f"<h1>{ours} beside every rival: sweep {results.sweep}</h1><p>{provenance(results)}. A case is called {SIZES}. "
        "Click on a case for all of its algorithms. Times are microseconds of a call, calls one after the other in a "
        "CUDA graph, the mean of its runs.</p>"
    )


def _widgets(
    columns: dict[str, list[Any]],
    times: dict[str, list[float | None]],
    table: DataTable,
    shown: BooleanFilter,
    summary: Div,
) -> list[Any]:
    batches = [str(batch) for batch in sorted(set(columns["batch"]))]
    sizes = list(dict.fromkeys(columns["filter"]))
    networks = sorted({name for cell in columns["networks"] for name in cell.split(";")})
    chosen = {
        "rival": Select(title="speedup over", options=list(times), value=next(iter(times)), width=320),
        "network": Select(title="network", options=[ALL, *networks], value=ALL, width=320),
        "text": TextInput(title="text in the case, network or layer", width=320),
    }
    buttons = {
        "batches": CheckboxButtonGroup(labels=batches, active=[*range(len(batches))]),
        "filters": CheckboxButtonGroup(labels=sizes, active=[*range(len(sizes))]),
    }
    given = {"table": table, "times": times, "filter": shown, "summary": summary, "all": ALL, **chosen, **buttons}
    choose = CustomJS(args=given, code=(HERE / "choose.js").read_text())
    for widget in chosen.values():
        widget.js_on_change("value", choose)
    for group in buttons.values():
        group.js_on_change("active", choose)
    return [*chosen.values(), Div(text="batch sizes"), buttons["batches"], Div(text="filter sizes"), buttons["filters"]]


def _cases(cases: ColumnDataSource, shown: BooleanFilter, ours: str) -> DataTable:
    us, ratio = NumberFormatter(format="0.00", nan_format="-"), NumberFormatter(format="0.00", nan_format="-")
    fields = [
        ("case", "case", None, 150), ("networks", "networks", None, 160), ("batch", "batch", None, 55),
        ("filter", "filter", None, 50), ("ours_us", f"{ours}, us", us, 110), ("rival_us", "rival, us", us, 80),
        ("speedup", "speedup", ratio, 75),
    ]  # fmt: skip
    columns = [_column(*one) for one in fields]
    view = CDSView(filter=shown)  # of its own: Bokeh does not share one between a table and a plot
    return DataTable(
        source=cases, view=view, columns=columns, width=HALF + 40, height=760, index_position=None, reorderable=False
    )


def _column(name: str, title: str, formatter: Any, width: int) -> TableColumn:
    return TableColumn(field=name, title=title, width=width, **({"formatter": formatter} if formatter else {}))


def _detail(cases: ColumnDataSource, details: list[list[list[Any]]]) -> Any:
    """The algorithms of the selected case, and their runs."""
    algorithms = ColumnDataSource({name: [] for name in ("name", *TIMES, "error", "workspace", "status")})
    runs = ColumnDataSource({"name": [""], "us": [1.0], "run": [1]})  # an empty logarithmic axis is an error
    title = Div(text="No case is selected.", width=HALF - 60)
    columns = [
        _column("name", "algorithm", None, 195),
        *(_column(name, title, NumberFormatter(format="0.00"), 7 * len(title)) for name, title in TIMES.items()),
        _column("error", "L2 error", ScientificFormatter(precision=1), 65),
        _column("workspace", "workspace, bytes", NumberFormatter(format="0,0"), 115),
        _column("status", "status", None, 85),
    ]  # fmt: skip
    table = DataTable(
        source=algorithms, columns=columns, width=HALF - 60, height=220, index_position=None, reorderable=False
    )
    plot = figure(
        y_range=FactorRange(""), width=HALF - 60, height=260, title="runs, us", toolbar_location=None,
        x_axis_type="log",
    )  # fmt: skip
    plot.scatter("us", "name", source=runs, size=5, color=RED, alpha=0.6)
    plot.add_tools(HoverTool(tooltips=[("", "@name"), ("run @run", "@us us")]))
    given = {"cases": cases, "details": details, "table": table, "runs": runs, "title": title, "plot": plot}
    cases.selected.js_on_change("indices", CustomJS(args=given, code=(HERE / "detail.js").read_text()))
    return column(title, table, plot)


def _dots(plot: Any, x: str, y: str, cases: ColumnDataSource, shown: BooleanFilter) -> None:
    view = CDSView(filter=shown)
    dots = plot.scatter(
        x, y, source=cases, view=view, size=5, color="colour", alpha=0.6, nonselection_alpha=0.6, selection_alpha=1.0,
        selection_line_color="black",
    )  # fmt: skip
    tooltips = [("", "@case @networks"), ("us", "@ours_us"), ("speedup", "@speedup{0.00}")]
    plot.add_tools(HoverTool(tooltips=tooltips, renderers=[dots]))
    for size in dict.fromkeys(cases.data["filter"]):  # entries that stay when a filter leaves no dot of a size
        plot.scatter([np.nan], [np.nan], size=7, color=_colour(size), legend_label=size)
    plot.legend.location = "top_left"


def _speedups(cases: ColumnDataSource, shown: BooleanFilter, ours: str) -> Any:
    plot = figure(
        width=HALF, height=420, x_axis_type="log", y_axis_type="log", tools="pan,box_zoom,wheel_zoom,tap,reset",
        title=f"Speedup of {ours} over the chosen rival", x_axis_label=f"{ours}, us", y_axis_label="speedup",
    )  # fmt: skip
    _dots(plot, "ours_us", "speedup", cases, shown)
    plot.legend.location = "top_right"
    plot.hspan(y=[1.0], line_color="black")
    return plot


def _roofline(results: Results, cases: ColumnDataSource, shown: BooleanFilter, ours: str) -> Any:
    """FLOP for each byte against FLOP/s, below the bandwidth of a copy and a fixed FLOP/s."""
    bytes_per_s, whence, flop_per_s = page.ceilings(results)
    plot = figure(
        width=HALF, height=420, x_axis_type="log", y_axis_type="log", tools="pan,box_zoom,wheel_zoom,tap,reset",
        title=f"Roofline of {ours}: {1e-12 * bytes_per_s:.2f} TB/s is {whence}, {1e-12 * flop_per_s:g} TFLOP/s a fixed "
        "yardstick", x_axis_label="FLOP for each byte of input, weights and output", y_axis_label="TFLOP/s",
    )  # fmt: skip
    intensity = np.array(cases.data["intensity"], dtype=float)
    ends = np.array([intensity.min(), flop_per_s / bytes_per_s, intensity.max()])
    plot.line(ends, 1e-12 * np.minimum(ends * bytes_per_s, flop_per_s), color="black")
    _dots(plot, "intensity", "tflops", cases, shown)
    return plot


def _networks(networks: Results) -> Any:
    """Bars of a forward in a CUDA graph: cuConv beside each contender of torch, in both precisions."""
    rows = networks.frame
    rows = rows[(rows["mode"] == GRAPH) & (rows.status == OK) & rows.contender.isin([CUCONV, *TORCH_CONTENDERS])]
    colours = dict(zip((CUCONV, *TORCH_CONTENDERS), (RED, *GREYS), strict=True))
    plots = [_bars(rows[rows.precision == precision], precision, colours) for precision in (FP32, TF32)]
    note = Div(text=f"<h2>Whole networks</h2><p>A forward in a CUDA graph. {provenance(networks)}.</p>")
    return column(note, *(plot for plot in plots if plot is not None))


def _bars(rows: pd.DataFrame, precision: str, colours: dict[str, str]) -> Any:
    if rows.empty:
        return None
    bars = [(label(one.network, one.source), str(one.batch), one.contender, one.mean_us) for one in each(rows)]
    order = list(colours)
    bars.sort(key=lambda bar: (bar[0], int(bar[1]), order.index(bar[2])))
    factors = [bar[:3] for bar in bars]
    source = ColumnDataSource({
        "x": factors, "us": [bar[3] for bar in bars], "contender": [bar[2] for bar in bars],
        "colour": [colours[bar[2]] for bar in bars],
    })  # fmt: skip
    plot = figure(
        x_range=FactorRange(*factors, range_padding=0.01), width=WIDTH, height=360, y_axis_type="log",
        y_axis_label="us", title=f"{precision.upper()}, microseconds of a forward, logarithmic", tools="reset",
    )  # fmt: skip
    plot.vbar(x="x", top="us", bottom=10, width=0.9, source=source, color="colour", legend_group="contender")
    plot.add_tools(HoverTool(tooltips=[("", "@x"), ("us", "@us{0.0}")]))
    plot.xaxis.major_label_text_font_size = "0px"
    plot.legend.orientation, plot.legend.location = "horizontal", "top_left"
    return plot
