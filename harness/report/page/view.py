"""The layout of the page: Bokeh's tables, plots and widgets over the columns of `harness.report.page`."""

from __future__ import annotations

from html import escape
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
    Range1d,
    ScientificFormatter,
    Select,
    TableColumn,
    TextInput,
)
from bokeh.plotting import figure

from harness.contenders.registry import COLOURS
from harness.experiments.networks.rows import CUCONV, GRAPH, OK, TORCH_CONTENDERS
from harness.precision import FP32, PRECISIONS, TF32
from harness.report import page
from harness.store.times import NOTES
from harness.sweep.comparisons import Results, each, grouped
from harness.sweep.provenance import provenance

HERE = Path(__file__).parent
ALL = "all networks"
STRETCHED = {"sizing_mode": "stretch_width"}
PLAIN = {"render_as_text": True, **STRETCHED}  # names from the results are no markup
BOLD = {"styles": {"font-size": "16px", "font-weight": "bold"}, **PLAIN}
WRAPPED = {"styles": {"flex-wrap": "wrap"}, **STRETCHED}  # a row of parts that have a least width
LEAST = {"min_width": 150, **STRETCHED}  # pixels of a widget, two to a line of a phone
PLOT = {"height": 420, "min_width": 320, "x_axis_type": "log", "y_axis_type": "log", **STRETCHED}
SCROLLED = {"styles": {"overflow-x": "auto"}, **STRETCHED}  # around a table, whose columns need their width
TABLE = {"min_width": 800, "index_position": None, "reorderable": False, **STRETCHED}
WRAPPED_BUTTONS = [".bk-btn-group { flex-wrap: wrap; }"]
RED, PALE, GREYS = COLOURS["cuconv"], "#f0b9a0", ("#424242", "#666666", "#8a8a8a", "#adadad", "#d1d1d1")
NETWORK_COLOURS = dict(zip((CUCONV, *TORCH_CONTENDERS), (RED, *GREYS), strict=True))
FILTER_COLOURS = {"1x1": "#3182bd", "3x3": "#31a354", "5x5": "#fd8d3c"}
OTHER_COLOUR = "#756bb1"
PAGES = "https://github.com/cuconv/cuconv/blob/main/docs"
TIMES = {"mean_us": "hot, us", "separated_us": "separated, us", "cold_us": "cold, us"}  # columns of a case's algorithms
SIZES = "HW-N-K-M-C: input size, batch, filter size, filters, channels"


def document(results: Results, networks: Results | None) -> Document:
    """The whole page of a sweep, with whole networks below it where these were measured."""
    columns, ours, theirs = page.case_columns(results), page.subject_times(results), page.rival_times(results)
    best = next(iter(theirs.values()))[page.FIRST]
    columns["rival_us"], columns["which"] = list(best["us"]), [[*best["names"], ""][i] for i in best["which"]]
    columns["speedup"] = [us and us / mine for us, mine in zip(best["us"], columns["ours_us"], strict=True)]
    columns["colour"] = [_colour(size) for size in columns["filter"]]
    cases, shown = ColumnDataSource(columns), BooleanFilter(booleans=[True] * len(columns["case"]))
    subject = results.shown(results.subject)
    table = _cases(cases, shown, subject)
    summary = Div(text=page.headline(columns, best["us"]), **BOLD)
    controls, lines = _widgets(columns, ours, theirs, table, shown, summary)
    state = {"cases": cases, "controls": controls}
    _on_change([*controls, cases.selected], CustomJS(args=state, code=(HERE / "save.js").read_text()))
    parts = [
        Div(text=_heading(results, subject), disable_math=True, **STRETCHED),
        *lines,
        summary,
        column(table, **SCROLLED),
        _detail(cases, page.details(results), page.engine_notes(results), subject),
        row(_speedups(cases, shown, subject), _yardstick(results, cases, shown, subject), **WRAPPED),
    ]
    if networks is not None:
        parts.append(_networks(networks))
    made = Document(title=f"cuConv: sweep {results.sweep} on {results.device}")
    made.add_root(column(*parts, max_width=1500, **STRETCHED))
    ready = CustomJS(args={"table": table, "filter": shown, **state}, code=(HERE / "ready.js").read_text())
    made.js_on_event(DocumentReady, ready)
    return made


def _colour(size: str) -> str:
    return FILTER_COLOURS.get(size, OTHER_COLOUR)


def _heading(results: Results, ours: str) -> str:
    return (
        f"<h1>{escape(f'{ours} and every rival: sweep {results.sweep}')}</h1><p>{escape(provenance(results))}. "
        f"A case is called {SIZES}. Click on a case for its algorithms, and on the head of a column to sort. Times are "
        "microseconds of a call in a CUDA graph, the mean of its runs. The page's address keeps what is chosen. "
        f'<a href="{PAGES}/results.md">Results</a> has the tables, <a href="{PAGES}/benchmark.md">the benchmark</a> '
        "how it is measured.</p>"
    )


def _widgets(
    columns: dict[str, list[Any]],
    ours: dict[str, list[float | None]],
    theirs: dict[str, page.Times],
    table: DataTable,
    shown: BooleanFilter,
    summary: Div,
) -> tuple[list[Any], list[Any]]:
    """The controls, each of which changes the table, the summary and the plots, and the lines that have them."""
    batches = [str(batch) for batch in sorted(set(columns["batch"]))]
    sizes = list(dict.fromkeys(columns["filter"]))
    networks = sorted({name for cell in columns["networks"] for name in cell.split(";")})
    measured = {part for key in ours for part in key.split()}
    times = [(time, f"{time}: {note}") for time, note in NOTES.items() if time in measured]
    precisions = [(one, one.upper()) for one in PRECISIONS if one in measured]
    allowed = [(FP32, "FP32"), (TF32, "FP32 or TF32, the faster one")]
    chosen = {
        "rival": Select(title="speedup over", options=list(theirs), value=next(iter(theirs)), **LEAST),
        "time": Select(title="time", options=times, value=times[0][0], **LEAST),
        "precision": Select(title="precision of cuConv", options=precisions, value=FP32, **LEAST),
        "allowed": Select(title="precision of the rival", options=allowed, value=FP32, **LEAST),
        "network": Select(title="network", options=[ALL, *networks], value=ALL, **LEAST),
    }
    text = TextInput(title="text in the case, network or layer", min_width=220, **STRETCHED)
    buttons = {
        name: CheckboxButtonGroup(labels=labels, active=[*range(len(labels))], stylesheets=WRAPPED_BUTTONS)
        for name, labels in (("batches", batches), ("filters", sizes))
    }
    controls = {**chosen, "text": text, **buttons}
    for name, control in controls.items():
        control.name = name  # in the page's address
    given = {
        "table": table,
        "ours": ours,
        "theirs": theirs,
        "filter": shown,
        "summary": summary,
        "all": ALL,
        **controls,
    }
    _on_change([*controls.values()], CustomJS(args=given, code=(HERE / "choose.js").read_text()))
    labelled = [Div(text="batch sizes"), buttons["batches"], Div(text="filter sizes"), buttons["filters"]]
    *compared, network = chosen.values()
    return [*controls.values()], [row(*compared, **WRAPPED), row(network, text, **WRAPPED), row(*labelled, **WRAPPED)]


def _on_change(models: list[Any], callback: CustomJS) -> None:
    """Run a callback after each change of a control, while a text is typed too, or of a selection."""
    for model in models:
        names = model.properties()
        model.js_on_change(
            next(name for name in ("value_input", "value", "active", "indices") if name in names), callback
        )


def _cases(cases: ColumnDataSource, shown: BooleanFilter, ours: str) -> DataTable:
    number = NumberFormatter(format="0.00", nan_format="-")
    fields = [
        ("case", "case", None, 150), ("networks", "networks", None, 160), ("batch", "batch", None, 55),
        ("filter", "filter", None, 50), ("ours_us", f"{ours}, us", number, 110), ("rival_us", "rival, us", number, 80),
        ("speedup", "speedup", number, 75), ("which", "rival", None, 230),
    ]  # fmt: skip
    columns = [_column(*one) for one in fields]
    view = CDSView(filter=shown)  # another one, since Bokeh does not share it between a table and a plot
    return DataTable(source=cases, view=view, columns=columns, height=420, **TABLE)


def _column(name: str, title: str, formatter: Any, width: int) -> TableColumn:
    return TableColumn(field=name, title=title, width=width, **({"formatter": formatter} if formatter else {}))


def _detail(cases: ColumnDataSource, details: list[list[list[Any]]], notes: list[str], subject: str) -> Any:
    """The algorithms of the selected case, and their runs."""
    algorithms = ColumnDataSource({name: [] for name in ("name", *TIMES, "error", "workspace", "status")})
    runs = ColumnDataSource(
        {"name": [""], "us": [1.0], "run": [1], "colour": ["transparent"]}
    )  # an empty logarithmic axis is an error
    title, note = Div(text="No case is selected.", **BOLD), Div(**PLAIN)
    columns = [
        _column("name", "algorithm", None, 400),
        *(_column(name, title, NumberFormatter(format="0.00"), 7 * len(title)) for name, title in TIMES.items()),
        _column("error", "L2 error", ScientificFormatter(precision=1), 65),
        _column("workspace", "workspace, bytes", NumberFormatter(format="0,0"), 115),
        _column("status", "status", None, 85),
    ]  # fmt: skip
    table = DataTable(source=algorithms, columns=columns, height=320, **TABLE)
    plot = figure(
        y_range=FactorRange(""), height=260, x_axis_type="log", title="hot runs, us", toolbar_location=None, **STRETCHED
    )
    plot.scatter("us", "name", source=runs, size=5, color="colour", alpha=0.6)
    plot.add_tools(HoverTool(tooltips=[("", "@name"), ("run @run", "@us us")]))
    given = dict(cases=cases, details=details, table=table, runs=runs, title=title, plot=plot, notes=notes, note=note,
                 subject=subject, colours=[RED, PALE, GREYS[1]])  # fmt: skip
    cases.selected.js_on_change("indices", CustomJS(args=given, code=(HERE / "detail.js").read_text()))
    caption = Div(text=f"Red: {subject}. Pale red: cuConv's other algorithms. Grey: all others.", **PLAIN)
    return column(title, note, column(table, **SCROLLED), plot, caption, **STRETCHED)


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
        tools="pan,box_zoom,wheel_zoom,tap,reset", **PLOT,
        title=f"Speedup of {ours} over the chosen rival", x_axis_label=f"{ours}, us", y_axis_label="speedup",
    )  # fmt: skip
    _dots(plot, "ours_us", "speedup", cases, shown)
    plot.legend.location = "top_right"
    plot.hspan(y=[1.0], line_color="black")
    return plot


def _yardstick(results: Results, cases: ColumnDataSource, shown: BooleanFilter, ours: str) -> Any:
    """FLOP for each byte against FLOP/s, with the line of a bandwidth and a fixed FLOP/s, and a caption."""
    bytes_per_s, whence, flop_per_s = page.ceilings(results)
    plot = figure(
        tools="pan,box_zoom,wheel_zoom,tap,reset", **PLOT, title=f"FLOP/s of {ours}, and a yardstick",
        x_axis_label="FLOP for each byte of input, weights and output", y_axis_label=f"TFLOP/s of {ours}",
    )  # fmt: skip
    intensity = np.array(cases.data["intensity"], dtype=float)
    ends = np.array([intensity.min(), flop_per_s / bytes_per_s, intensity.max()])
    plot.line(ends, 1e-12 * np.minimum(ends * bytes_per_s, flop_per_s), color="black")
    _dots(plot, "intensity", "tflops", cases, shown)
    caption = (
        f"The line is {1e-12 * bytes_per_s:.2f} TB/s ({whence}) and {1e-12 * flop_per_s:g} TFLOP/s. "
        "It is a yardstick and no bound: tensor cores can go above it."
    )
    return column(plot, Div(text=caption, **PLAIN), min_width=320, **STRETCHED)


def _networks(networks: Results) -> Any:
    """Bars of a forward in a CUDA graph: cuConv and each contender of torch, in each precision."""
    rows = networks.frame
    rows = rows[(rows["mode"] == GRAPH) & (rows.status == OK) & rows.contender.isin([CUCONV, *TORCH_CONTENDERS])]
    key = " ".join(f'<span style="color: {colour}">&#9632;</span> {name}' for name, colour in NETWORK_COLOURS.items())
    note = (
        f"<h2>Whole networks</h2><p>A forward in a CUDA graph; higher is faster. {escape(provenance(networks))}.</p>"
        f"<p>{key}</p>"
    )
    charts = [_bars(bars, precision) for precision, bars in grouped(page.network_bars(rows), "precision")]
    return column(Div(text=note, disable_math=True, **STRETCHED), *charts, **STRETCHED)


def _bars(bars: pd.DataFrame, precision: str) -> Any:
    factors = [(one.shown, str(one.batch), one.bar) for one in each(bars)]
    source = ColumnDataSource({
        "x": factors, "us": bars.mean_us, "speed": bars.speed, "contender": bars.contender,
        "colour": bars.contender.map(NETWORK_COLOURS),
    })  # fmt: skip
    plot = figure(
        x_range=FactorRange(*factors, range_padding=0.01), y_range=Range1d(0, 1.05 * bars.speed.max()), height=360,
        y_axis_label="speed, fastest torch = 1", tools="", **STRETCHED,
    )  # fmt: skip
    plot.vbar(x="x", top="speed", width=0.9, source=source, color="colour")
    plot.hspan(y=[1.0], line_color="black")
    plot.add_tools(HoverTool(tooltips=[("", "@x"), ("us", "@us{0.0}"), ("speed", "@speed{0.00}")]))
    plot.xaxis.major_label_text_font_size, plot.xaxis.major_tick_line_color = "0px", None
    plot.xaxis.group_text_font_size = "9px"  # five networks side by side on a phone
    plot.xgrid.visible = False
    title = precision.upper()
    if page.CUCONV_IN_FP32 in set(bars.bar):
        title += f". cuConv in {title} is not measured yet: its bar is cuConv in FP32"
    return column(Div(text=title, **BOLD), plot, **STRETCHED)
