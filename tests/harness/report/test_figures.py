"""The figures of helpers.SWEEP: which are drawn, that they show the numbers, and that a redraw is the same bytes."""

import json
import math

import matplotlib.style
import pytest
from PIL import Image

from harness.report.figures import figures, style
from harness.report.figures.command import main
from harness.report.figures.maps import rivals_figure
from harness.report.figures.overview import overview_figure
from harness.report.figures.speedup import speedup_figure
from harness.sweep.comparisons import Results
from harness.sweep.left_out import left_out
from tests.harness.report.helpers import collisions
from tests.helpers import GPU, SWEEP, THREE_TIMES, measured, row, write

FACTS = {"gpu": "NVIDIA Test", "cudnn": 91900, "commands": [{"command": "x", "date": "2025-11-20T10:00:00"}]}


def draw(root, rows, device=GPU, sweep="paper", facts=None):
    """Draw the figures of some rows, measured on a machine of these facts, and return their folder."""
    folder = write(root / "results", rows, device, sweep).parent
    if facts:
        (folder / "environment.json").write_text(json.dumps({"environments": {"e": facts}}))
    assert main(["--results", str(root / "results"), "--out", str(root / "plots")]) == 0
    return root / "plots" / device / sweep


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, texts_of):
    """The folder of the figures of SWEEP, measured on the machine of FACTS."""
    return draw(tmp_path_factory.mktemp("sweep"), SWEEP, facts=FACTS)


def legends(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def cases_of(tmp_path, rows=SWEEP, k=1):
    table = measured(tmp_path, rows).of_subject()
    return table[table.k == k]


def test_a_figure_for_each_subject_and_filter_size_the_map_and_the_overview(drawn):
    stems = {f"speedup_{subject}_{k}x{k}" for subject in ("auto", "two_stage") for k in (1, 3, 5)}
    expected = {f"{stem}.png" for stem in {*stems, "map", "rivals", "overview"}}
    assert {path.name for path in drawn.iterdir()} == expected
    for path in drawn.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 150 and len(image.getcolors(1 << 20)) > 8, f"{path.name} shows nothing"
            assert image.width == 9 * style.DPI, f"{path.name} is not nine inches wide"


WIDE = [  # speedups from 0.02 to 40 at seven batch sizes, of layers with long labels, and one rival over the limit
    made
    for i, batch in enumerate((1, 8, 16, 32, 64, 128, 256))
    for k, shape in ((1, {}), (2, {"stride": 2, "pad": 0}), (3, {"m": 1024, "c": 1024, "groups": 32, "stride": 2}))
    for made in (
        row("auto", 10.0, batch=batch, k=k, **shape), row("two_stage", 100.0 * k * k, batch=batch, k=k, **shape),
        row("gemm", 20.0 * (0.6 + i * k), provider="cudnn", batch=batch, k=k, **shape),
        row("fft", 1.0, provider="cudnn", k=k, batch=batch, **shape) if batch == 1 else
        row("fft", status="workspace_exceeded", provider="cudnn", k=k, batch=batch, **shape),
        row("auto", 9.0, batch=batch, k=k, precision="tf32", **shape),
        row("gemm", 5.0 + i, provider="cudnn", batch=batch, k=k, precision="tf32", **shape),
    )
]  # fmt: skip
NARROW = [made for k in range(1, 7) for made in (row("auto", 10.0, k=k), row("gemm", 10.0, provider="cudnn", k=k))]


SIZES = [made for k in range(1, 14) for made in (row("auto", 10.0, k=k, kw=65), row("gemm", 9.0 + k, provider="cudnn",
         k=k, kw=65))]  # fmt: skip


@pytest.mark.parametrize(
    "rows", [SWEEP, THREE_TIMES, WIDE, NARROW, SIZES], ids=["sweep", "times", "wide", "narrow", "sizes"]
)
def test_texts_are_large_enough_and_overlap_nothing(tmp_path, rows):
    with matplotlib.style.context(["default", style.STYLE]):
        drawings = dict(figures(measured(tmp_path, rows)))
        found = {stem: pairs for stem, figure in drawings.items() if (pairs := collisions(figure))}
    assert not found and {"overview", "rivals"} < set(drawings)
    for stem, figure in drawings.items():
        texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        assert min(text.get_fontsize() for text in (*texts, *ticks)) >= 7, stem
        assert figure.get_size_inches()[0] == 9, "nine inches are 900 pixels"


def test_a_chart_has_the_machine_the_means_each_layer_once_and_a_mark_where_there_is_no_speedup(drawn, texts_of):
    for stem in ("speedup_auto_1x1", "rivals", "overview"):
        assert any("NVIDIA Test, cuDNN 9.19.0, 2025-11-20" in text for text in texts_of(drawn / f"{stem}.png"))
    texts = texts_of(drawn / "speedup_auto_1x1.png")
    assert {"batch 1", "1.44x, 2/3 won", "batch 8", "1.00x, 0/2 won"} <= set(texts) and "batch 128" not in texts
    assert texts.count("\u00d7") == 1  # batch 8, 7-48-832: incorrect
    assert texts_of(drawn / "speedup_auto_5x5.png").count("\u25cb") == 1  # no rival
    assert "\u00d7" not in texts_of(drawn / "speedup_auto_3x3.png")


def test_a_chart_names_the_worst_case_of_all_batch_sizes(tmp_path, texts_of):
    folder = draw(tmp_path, [*SWEEP, row("auto", 90.0, batch=256), row("gemm", 10.0, provider="cudnn", batch=256)])
    for stem in ("speedup_auto_1x1", "map"):
        assert any("0.11x" in text and "batch 256" in text for text in texts_of(folder / f"{stem}.png"))


def test_bars_are_as_long_as_the_speedups_on_a_logarithmic_axis(tmp_path):
    first, second, _ = speedup_figure(cases_of(tmp_path), "", "").axes
    bars, runs = first.collections
    assert [path.vertices[2, 0] for path in bars.get_paths()] == [3, 2, 0.5]
    assert all(path.vertices[0, 0] == 1 for path in bars.get_paths())
    assert [tuple(segment[:, 0]) for segment in runs.get_segments()] == [(3, 3), (2, 2), (0.5, 0.5)]
    assert [line.get_xdata()[0] for line in first.lines] == [pytest.approx(3 ** (1 / 3)), 1]
    assert first.get_xscale() == "log" and first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[0] < 0.5 and first.get_xlim()[1] > 4, "batch 128 reaches 4"


def test_a_line_shows_the_slowest_and_the_fastest_run(tmp_path):
    table = cases_of(tmp_path, [row("auto", 10.0), row("gemm", 30.0, provider="cudnn")])
    (axes,) = speedup_figure(table.assign(least_us=6.0, most_us=15.0), "", "").axes
    (segment,) = axes.collections[1].get_segments()
    assert tuple(segment[:, 0]) == (2, 5)
    assert axes.get_xlim()[1] > 5


def test_all_batch_sizes_are_a_map_of_numbers(tmp_path):
    axes, *_ = dict(figures(measured(tmp_path, SWEEP)))["map"].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "128"]
    cells = {(round(text.get_position()[0]), round(text.get_position()[1])): text.get_text() for text in axes.texts[:6]}
    assert cells[0, 0] == "3.00" and cells[1, 1] == "\u00d7" and cells[2, 0] == "4.00" and len(cells) == 6
    colours = axes.collections[0].get_facecolors()[:, 0]
    assert len({*colours}) == 5 and colours[0] == colours[5], "3 and 4 are in one range; 2, 0.5, 1 and none in others"


def test_many_batch_sizes_go_below_each_other(tmp_path):
    rows = [r for n in range(1, 10) for r in (row("auto", 10.0, batch=n), row("gemm", 12.0, provider="cudnn", batch=n))]
    panels = speedup_figure(cases_of(tmp_path, rows), "", "").axes
    boxes = [axes.get_position() for axes in panels]
    assert len(panels) == 9 and len({round(box.y0, 6) for box in boxes}) == 2
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in boxes)
    assert boxes[7].y1 < boxes[0].y0


def test_the_overview_has_a_dot_for_each_case_and_the_means(tmp_path):
    results = measured(tmp_path, SWEEP)
    figure = overview_figure(results.of_subject(), "cuConv auto", "the best cuDNN", "", *left_out(results))
    (axes,) = figure.axes
    dots = [y for line in axes.lines if line.get_marker() == "o" for y in line.get_ydata()]
    assert sorted(dots) == [0.25, 0.5, 1, 2, 3, 4] and axes.get_yscale() == "log"
    assert all(value in figure.texts[0].get_text() for value in ("3 of 7", "1.20x"))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["batch 1\nmean 0.93x", "batch 8\nmean 1.00x", "batch 128\nmean 4.00x"]
    assert [text.get_text() for text in axes.texts] == ["1.44", "0.25", "1.00", "4.00"], "at the mean of each strip"
    assert [text.get_position()[1] for text in axes.texts] == pytest.approx([3 ** (1 / 3), 0.25, 1, 4])
    hollow = overview_figure(results.of_subject().assign(batch=1), "", "", "", results.of_subject().k == 3, "1 GiB")
    dots = [line for line in hollow.axes[0].lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots if line.get_markerfacecolor() == "white"] == [[0.25]]
    assert any("1 GiB" in text for text in legends(hollow)) and not any("GiB" in text for text in legends(figure))
    assert figure.get_facecolor() == (1, 1, 1, 1), "opaque, to be read on dark pages too"


DRAWN = [  # speedups 4 and 0.5, and one case without a rival's time; regrets 1.25 and 2
    row("auto", 10.0, h=9, w=4), row("two_stage", 8.0, h=9, w=4), row("gemm", 40.0, provider="cudnn", h=9, w=4),
    row("auto", 40.0, h=100, w=100, k=31), row("two_stage", 20.0, h=100, w=100, k=31),
    row("gemm", 20.0, provider="cudnn", h=100, w=100, k=31), row("auto", 3.0, k=1, kw=7),
]  # fmt: skip


def test_random_layers_have_one_figure_by_plane_and_filter(tmp_path, texts_of):
    folder = draw(tmp_path, DRAWN, sweep="random", facts=FACTS)
    assert [path.name for path in folder.iterdir()] == ["planes.png"]
    assert any("1.41x over the best cuDNN, faster on 1 of 2 cases" in text for text in texts_of(folder / "planes.png"))
    results = Results.read(write(tmp_path / "one", DRAWN, sweep="random").parent)
    with matplotlib.style.context(["default", style.STYLE]):
        ((_, figure),) = figures(results)
        assert not collisions(figure)
    speedups, regrets = figure.axes
    for axes, values in ((speedups, [4, 0.5]), (regrets, [1.25, 2])):
        dots = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"}
        assert {label: points for label, points in dots.items() if points} == {
            "1": [[6.0, values[0]]], "16 and more": [[100.0, values[1]]],
        }  # fmt: skip
    assert speedups.get_xlim() == regrets.get_xlim() and speedups.get_xscale() == "log"


def test_without_algorithms_by_name_the_figure_of_planes_has_no_regret(tmp_path):
    rows = [made for made in DRAWN if made.algorithm != "two_stage"]
    ((_, figure),) = figures(Results.read(write(tmp_path, rows, sweep="random").parent))
    assert len(figure.axes) == 1


def test_the_map_shows_the_fastest_rival_and_the_speedup_over_it(tmp_path):
    figure = rivals_figure(measured(tmp_path, SWEEP).of_subject(), "", "")
    cells = [len(axes.collections[0].get_paths()) for axes in figure.axes]
    assert sum(cells) == 8, "a cell for each case"
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[:6] == ["3.00", "2.00", "0.50", "1.00", "\u00d7", "4.00"]
    assert texts[6:] == ["HW-M-C"] or texts[6:-1] == ["1.44", "2/3", "1.00", "0/2", "4.00", "1/1"], "means, cases won"
    framed = sum(len(axes.collections[1].get_paths()) for axes in figure.axes)
    assert framed == 2, "the cases of speedup 0.5 and 0.25"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "cuDNN implicit_gemm (2)", "cuDNN winograd (1)", "cuDNN engine (2)", "torch cuDNN (2)",
    ]  # fmt: skip


def test_a_redraw_is_byte_identical_though_there_are_rows_in_tf32(drawn, tmp_path):
    out = draw(tmp_path, [*SWEEP, row("auto", 2.0, precision="tf32")], facts=FACTS)
    for path in drawn.iterdir():
        assert path.read_bytes() == (out / path.name).read_bytes(), f"{path.name}: figures in FP32 do not change"


@pytest.mark.parametrize("rows", [
    [row("gemm", 5.0, provider="cudnn")],
    [row("auto", 5.0), row("two_stage", 6.0)],
    [row("auto", status="error"), row("gemm", status="error", provider="cudnn")],
], ids=["only rivals", "only ours", "nothing ran"])  # fmt: skip
def test_where_nothing_compares_there_is_no_figure(tmp_path, capsys, rows):
    out = draw(tmp_path, rows)
    assert f"{out}: 0 files" in capsys.readouterr().out and not out.exists()


def test_a_cpu_and_other_filter_sizes(tmp_path, texts_of):
    rows = [row(name, us, provider="cpu", k=7, h=20, w=30) for name, us in (("two_stage", 2.0), ("fft", 3.0))]
    out = draw(tmp_path, rows, device="cpu", sweep="mine")
    texts = texts_of(out / "map.png")
    assert {"20x30-32-832", "1.50"} <= set(texts) and any("CPU two_stage" in text for text in texts)
    assert "CPU fft (1)" in texts_of(out / "rivals.png")


@pytest.mark.parametrize(("time", "speedups"), [("separated", (2.0, 0.8)), ("cold", (1.25, 2.0))])
def test_figures_of_another_time_have_a_folder_of_their_own(tmp_path, time, speedups, texts_of):
    write(tmp_path / "results", THREE_TIMES)
    arguments = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots"), "--time", time]
    assert main(arguments) == 0
    (folder,) = (tmp_path / "plots" / GPU / "paper").iterdir()
    assert folder.name == time
    texts = texts_of(folder / "speedup_auto_1x1.png")
    assert [f"{speedup:.2f}x, {int(speedup > 1)}/1 won" in texts for speedup in speedups] == [True, True]
    assert any(text.startswith(time.capitalize()) for text in texts)


def test_without_rows_of_a_time_there_is_no_figure_of_it(tmp_path, capsys):
    write(tmp_path / "results", SWEEP)
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots"), "--time", "cold"]) == 0
    assert "cold times" in capsys.readouterr().out and not (tmp_path / "plots").exists()


def test_ticks_are_round_and_their_labels_do_not_touch():
    def ticks(low, high, inches):
        return style.ticks_between((low, high), inches, lambda label: 0.07 * len(label))

    assert ticks(0.45, 1.3, inches=6) == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2])
    assert ticks(0.9, 11, inches=1.2) == pytest.approx([1, 2, 3, 5, 10])
    assert ticks(0.8, 10, inches=3)[0] == 1, "0.8 would pass the end of its axis"
    assert ticks(0.8, 10, inches=3)[-1] < 10
    assert ticks(0.0009, 1100, inches=1) == [1], "where no others have room"


def test_the_axis_has_room_for_every_ratio_and_for_one():
    assert style.ratio_range([]) == (0.8, 1.25)
    low, high = style.ratio_range([2.0, math.nan, 9.0])
    assert low == 0.8 and high > 9


def test_no_results(tmp_path, capsys):
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and str(tmp_path) in captured.err
