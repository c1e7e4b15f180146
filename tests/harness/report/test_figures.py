"""The figures: which are drawn, that they show the numbers, and that the same data draws the same bytes."""

import re
from itertools import pairwise

import pytest
from PIL import Image

from harness.report import figures as plots
from harness.results.comparisons import compare
from tests.helpers import SWEEP, frame, row, write

GPU = "nvidia-test"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The figures of samples.SWEEP, drawn by the command line: their folder."""
    root = tmp_path_factory.mktemp("sweep")
    write(root / "results", SWEEP)
    assert plots.main(["--results", str(root / "results"), "--out", str(root / "plots")]) == 0
    return root / "plots" / GPU / "paper"


def svg_texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_a_figure_per_subject_and_filter_size_and_the_map(drawn):
    # 1x1 has batch 128, beyond the paper's range, so that figure alone has a full version.
    figures = ("1x1", "1x1_full", "3x3", "5x5")
    stems = {f"speedup_{subject}_{figure}" for subject in ("auto", "two_stage") for figure in figures}
    expected = {f"{stem}.{kind}" for stem in {*stems, "winners"} for kind in ("svg", "png")}
    assert {path.name for path in drawn.iterdir()} == expected
    for path in drawn.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 150 and len(image.getcolors(1 << 20)) > 8, f"{path.name} shows nothing"


def test_a_redraw_is_byte_identical(drawn, tmp_path, capsys):
    write(tmp_path / "results", SWEEP)
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    again = tmp_path / "plots" / GPU / "paper"
    assert capsys.readouterr().out == f"{again}: 18 files\n"
    for path in drawn.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_the_chart_says_what_is_compared_and_groups_by_batch(drawn):
    texts = svg_texts(drawn / "speedup_auto_1x1.svg")
    assert "Speedup of cuConv auto over the best cuDNN, 1x1 filters" in texts
    assert f"Measured on {GPU}, sweep paper" in texts
    assert {"batch 1", "mean 1.44x, 2/3 won", "batch 8", "mean 1.00x, 0/2 won"} <= set(texts)
    assert "batch 128" not in texts and "batch 128" in svg_texts(drawn / "speedup_auto_1x1_full.svg")
    assert [t for t in texts if re.fullmatch(r"\d+-\d+-\d+", t)] == [
        "7-32-832", "7-48-832", "14-16-480", "7-32-832", "7-48-832"]  # fmt: skip


def test_an_empty_slot_is_marked(drawn):
    assert svg_texts(drawn / "speedup_auto_1x1.svg").count("\u00d7") == 1  # batch 8, 7-48-832: incorrect
    assert svg_texts(drawn / "speedup_auto_5x5.svg").count("\u25cb") == 1  # no rival
    assert "\u00d7" not in svg_texts(drawn / "speedup_auto_3x3.svg")


def test_bars_are_as_tall_as_the_speedups(tmp_path):
    table = compare(frame(tmp_path, SWEEP), GPU)
    cases = table[(table.subject == "auto") & (table.k == 1) & (table.batch == 1)]
    (axes,) = plots.speedup_figure(cases, "", "").axes
    (bars,) = axes.collections
    assert [path.vertices[:, 1].max() for path in bars.get_paths()] == [3, 2, 0.5]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] >= 3
    heights = [line.get_ydata()[0] for line in axes.lines]
    assert heights == [1, pytest.approx(3 ** (1 / 3))]


def test_an_outlier_is_cut_and_written_out(tmp_path):
    rows = [
        r
        for m in range(1, 12)
        for r in (row("auto", 1.0 if m == 3 else 10.0, m=m), row("gemm", 12.0, provider="cudnn", m=m))
    ]
    (axes,) = plots.speedup_figure(compare(frame(tmp_path, rows), GPU), "", "").axes
    assert axes.get_ylim() == (0, 3.0)
    assert [text.get_text() for text in axes.texts if re.fullmatch(r"[\d.]+", text.get_text())] == ["12.0"]


def test_a_large_sweep_is_laid_out_in_rows_without_overlap(tmp_path):
    rows = [
        r
        for batch, layers in ((1, 100), (8, 3), (16, 60), (32, 20))
        for m in range(1, layers + 1)
        for r in (row("auto", 10.0, m=m, batch=batch), row("gemm", 12.0, provider="cudnn", m=m, batch=batch))
    ]
    laid_out = plots.group_rows(compare(frame(tmp_path, rows), GPU))
    assert [[len(group.cases) for group in line] for line in laid_out] == [[74], [26, 3], [60], [20]]
    for line in laid_out:
        assert line[0].start == 0 and line[-1].end <= plots.ROW_SLOTS
        assert all(after.start > before.end for before, after in pairwise(line))


def test_ours_in_tf32_has_figures_of_its_own(drawn, tmp_path):
    tf32 = [row("auto", 2.0, precision="tf32"), row("auto", 5.0, precision="tf32", batch=128)]
    tf32.append(row("gemm", 5.0, provider="cudnn", precision="tf32", batch=128))
    write(tmp_path / "results", [*SWEEP, *tf32])
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    out = tmp_path / "plots" / GPU / "paper"
    assert {path.name for path in out.iterdir()} - {path.name for path in drawn.iterdir()} == {
        "speedup_tf32_1x1.png",
        "speedup_tf32_1x1.svg",
    }
    texts = svg_texts(out / "speedup_tf32_1x1.svg")
    assert "Speedup: cuConv auto in TF32 against the best cuDNN with TF32 allowed, 1x1 filters" in texts
    assert {"batch 1", "mean 0.50x, 0/1 won", "batch 128", "mean 1.00x, 0/1 won"} <= set(texts)
    for path in drawn.iterdir():
        assert path.read_bytes() == (out / path.name).read_bytes(), "figures in FP32 are what they were"


def test_the_map_shows_each_winner(drawn, tmp_path):
    texts = svg_texts(drawn / "winners.svg")
    wins = {"cuConv (4)", "cuDNN implicit_gemm (1)", "cuDNN winograd (1)", "torch cuDNN (1)", "cuBLAS (1)"}
    assert wins <= set(texts)
    assert {"1x1 filters", "3x3 filters", "5x5 filters"} <= set(texts)
    figure = plots.winners_figure(frame(tmp_path, SWEEP), "")
    cells = sum(len(axes.collections[0].get_paths()) for axes in figure.axes)
    assert cells == 8  # of 8 cases


def test_where_only_rivals_were_measured_there_is_only_the_map(tmp_path):
    rows = [row("gemm", 5.0, provider="cudnn"), row("gemm", status="error", provider="cudnn", k=3)]
    write(tmp_path / "results", rows)
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    out = tmp_path / "plots" / GPU / "paper"
    assert sorted(path.name for path in out.iterdir()) == ["winners.png", "winners.svg"]
    assert "nothing ran" in svg_texts(out / "winners.svg")


def test_where_only_ours_were_measured_there_is_nothing_to_draw(tmp_path, capsys):
    write(tmp_path / "results", [row("auto", 5.0), row("two_stage", 6.0)])
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    assert "0 files" in capsys.readouterr().out
    assert not (tmp_path / "plots").exists()


def test_where_nothing_ran_there_is_no_figure(tmp_path, capsys):
    csv_path = write(tmp_path / "results", [row("gemm", status="error", provider="cudnn")])
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    assert capsys.readouterr().out.endswith(f"0 files, for no row of {csv_path} has a time of a rival\n")


def test_a_cpu_and_other_filter_sizes(tmp_path):
    rows = [row(name, us, provider="cpu", k=7, h=20, w=30) for name, us in (("two_stage", 2.0), ("fft", 3.0))]
    write(tmp_path / "results", rows, device="cpu", sweep="mine")
    assert plots.main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "plots")]) == 0
    texts = svg_texts(tmp_path / "plots/cpu/mine/speedup_two_stage_7x7.svg")
    assert "Speedup of CPU two_stage over the best torch CPU convolution, 7x7 filters" in texts
    assert {"20x30-32-832", "mean 1.50x, 1/1 won"} <= set(texts)


def test_nothing_to_draw(tmp_path, capsys):
    assert plots.main(["--results", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"no DEVICE/SWEEP/measurements.csv under {tmp_path}" in captured.err
