"""The page of a sweep: what it shows, worked out by hand for helpers.SWEEP, and how it behaves in a real browser."""

import json
import re
import shutil
import sys
from dataclasses import replace

import pandas as pd
import pytest
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from harness.experiments.networks.rows import CUCONV, NETWORKS, TORCH_CONTENDERS
from harness.experiments.networks.table import networks_results
from harness.report import page
from harness.report.page import view
from harness.report.page.command import html, main
from harness.sweep.comparisons import compare_with_tf32
from tests.harness.experiments.networks.toy_networks import time
from tests.helpers import GPU, SWEEP, THREE_TIMES, measured, row, write

MARKUP = "<img src=x onerror=alert(1)>"
LABELS = ["7-1-1-32-832", "7-1-1-48-832", "14-1-1-16-480", "7-8-1-32-832", "7-128-1-32-832", "7-1-3-32-832"]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def marked(results):
    """Rows, and an environment.json, whose every text is markup."""
    folder = results / GPU / "paper"
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text(json.dumps({"environments": {"e": {"gpu": MARKUP, "torch": "</script>"}}}))
    texts = {"networks": MARKUP, "layers": MARKUP + "</script><script>alert(2)</script>", "detail": MARKUP}
    rows = [row(environment="e"), row(f"eng{MARKUP}", 20.0, provider="cudnn_engine", environment="e")]
    return [replace(one, **texts) for one in rows]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("results"), SWEEP)


def test_cases_are_those_that_auto_ran(sweep):
    columns = page.case_columns(sweep)
    assert columns["case"] == [*LABELS, "7-1-5-32-832"]
    assert columns["ours_us"] == [10.0, 10.0, 20.0, 15.0, 10.0, 40.0, 10.0]
    # 7-1-1-32-832 is 2 * 49 * 832 * 32 FLOP, and 4 * (49 * 832 + 832 * 32 + 49 * 32) bytes at least.
    assert columns["intensity"][0] == pytest.approx(2609152 / 275840, rel=1e-3)
    assert columns["tflops"][0] == pytest.approx(2609152 / 10e-6 / 1e12, rel=1e-3)


def test_rivals_to_choose(sweep):
    times = {name: columns["hot fp32"]["us"] for name, columns in page.rival_times(sweep).items()}
    assert next(iter(times)) == "the best cuDNN"
    assert times["the best cuDNN"] == [30.0, 20.0, 10.0, 15.0, 40.0, 10.0, None]
    assert times["best cuDNN engine"] == [None, 20.0, None, None, 40.0, None, None]
    assert times["cuBLAS bmm"] == [5.0, None, 40.0, None, None, None, None]
    assert "cuConv auto" not in times  # of itself there is no speedup
    assert "cuDNN fft" not in times  # it never ran


def test_the_rival_of_each_case_has_a_name(sweep):
    best = page.rival_times(sweep)["the best cuDNN"]["hot fp32"]
    assert [best["names"][i] if i >= 0 else None for i in best["which"]] == [
        "cuDNN implicit_gemm", "cuDNN engine eng3_k11=2", "cuDNN implicit_gemm", "torch cuDNN default",
        "cuDNN engine eng3_k11=1", "cuDNN winograd", None,
    ]  # fmt: skip


def test_three_times_to_choose(tmp_path):
    results = measured(tmp_path, THREE_TIMES)
    assert page.subject_times(results) == {
        "hot fp32": [10.0, 20.0], "separated fp32": [12.0, 20.0], "cold fp32": [20.0, 25.0],
    }  # fmt: skip
    best = page.rival_times(results)["the best cuDNN"]
    assert {key: columns["us"] for key, columns in best.items()} == {
        "hot fp32": [30.0, 10.0], "separated fp32": [24.0, 16.0], "cold fp32": [25.0, 50.0],
    }  # fmt: skip
    assert best["separated fp32"]["names"] == ["cuDNN fft", "cuDNN gemm"]


def test_a_choice_of_tf32_is_that_of_the_tables(tmp_path):
    rows = [
        row("auto", 10.0), row("auto", 6.0, precision="tf32"), row("gemm", 20.0, provider="cudnn"),
        row("fft", 5.0, provider="cudnn", precision="tf32"),
        row("auto", 10.0, m=48), row("gemm", 20.0, provider="cudnn", m=48),
        row("gemm", 25.0, provider="cudnn", m=48, precision="tf32"),
        row("auto", 10.0, m=64), row("gemm", 20.0, provider="cudnn", m=64),
    ]  # fmt: skip
    results = measured(tmp_path, rows)
    assert page.subject_times(results) == {"hot fp32": [10.0, 10.0, 10.0], "hot tf32": [6.0, None, None]}
    chosen = page.rival_times(results)["the best cuDNN"]["hot tf32"]
    # The faster of both precisions, and only where a rival has a time in TF32.
    assert chosen == {"us": [5.0, 20.0, None], "which": [0, 1, -1], "names": ["cuDNN fft (TF32)", "cuDNN gemm"]}
    for ours in ("fp32", "tf32"):
        table = compare_with_tf32(results, ours)
        assert table.rival_us.to_list() == [us for us in chosen["us"] if us]


def test_bars_of_networks_are_relative_to_the_fastest_of_torch():
    rows = pd.DataFrame([
        ("resnet50", "torchvision", batch, contender, "fp32", us)
        for batch, contender, us in [(8, "torch", 40.0), (1, "torch_compile", 30.0), (1, "torch", 20.0),
                                     (8, "cuconv", 10.0), (1, "cuconv", 25.0), (32, "cuconv", 5.0)]
    ], columns=["network", "source", "batch", "contender", "precision", "mean_us"])  # fmt: skip
    bars = page.network_bars(rows)
    assert list(zip(bars.batch, bars.contender, bars.speed, strict=True)) == [
        (1, "cuconv", 0.8), (1, "torch", 1.0), (1, "torch_compile", pytest.approx(2 / 3)),
        (8, "cuconv", 4.0), (8, "torch", 1.0),
    ]  # fmt: skip


def test_torch_in_fp16_is_beside_cuconv_in_fp32_as_long_as_cuconv_has_no_fp16():
    columns = ["network", "source", "batch", "contender", "precision", "mean_us"]
    found = [("torch", "fp16", 10.0), ("torch", "fp32", 30.0), ("cuconv", "fp32", 20.0)]
    rows = [("resnet50", "torchvision", 1, *one) for one in found]
    bars = page.network_bars(pd.DataFrame(rows, columns=columns))
    assert list(zip(bars.precision, bars.bar, bars.speed, strict=True)) == [
        ("fp16", "cuconv in FP32", 0.5), ("fp16", "torch", 1.0), ("fp32", "cuconv", 1.5), ("fp32", "torch", 1.0),
    ]  # fmt: skip
    bars = page.network_bars(
        pd.DataFrame([*rows, ("resnet50", "torchvision", 1, "cuconv", "fp16", 5.0)], columns=columns)
    )
    assert list(bars.bar[bars.precision == "fp16"]) == ["cuconv", "torch"]


def test_every_contender_of_networks_is_on_the_page_in_a_colour_of_its_own(tmp_path):
    contenders = (CUCONV, *TORCH_CONTENDERS)
    results = measured(tmp_path, [row(), row("fft", 20.0, provider="cudnn")])
    NETWORKS.write(results.folder.parent / "networks", [time(10.0, contender=name) for name in contenders])
    made = view.document(results, networks_results(results.folder.parent))
    (bars,) = (one.data for one in made.select({"type": ColumnDataSource}) if "contender" in one.data)
    assert list(bars["contender"]) == list(contenders)
    assert len(set(bars["colour"])) == len(contenders)


def test_the_sentence_above_the_table_is_that_of_all_tables(sweep):
    best = next(iter(page.rival_times(sweep).values()))["hot fp32"]["us"]
    # 3, 2, 0.5, 1, 4 and 0.25: their product is 3.
    assert page.headline(page.case_columns(sweep), best) == "6 cases: geometric mean 1.20x, 3 won"


def test_details_are_in_the_order_of_time_and_keep_what_failed(sweep):
    second = page.details(sweep)[1]
    assert [detail[:3] for detail in second] == [
        ["cuConv auto", "fp32", "ok"],
        ["cuDNN engine eng3_k11=2", "fp32", "ok"],
        ["cuDNN implicit_gemm", "fp32", "ok"],
    ]
    assert second[0][5] == [10.0, 10.0, 10.0]
    failed = page.details(sweep)[-1][1]
    assert failed == ["cuDNN fft", "fp32", "unsupported", None, None, []]


def test_details_have_the_other_times_and_no_half_precision(tmp_path):
    half = [row("default", 1.0, provider="torch", precision="fp16"),
            row("eng1", 1.0, provider="cudnn_engine", precision="fp16")]  # fmt: skip
    rows = [row(separated=11.0, cold=12.0), row("fft", 20.0, provider="cudnn"), *half]
    ((ours, theirs),) = page.details(measured(tmp_path, rows))
    assert (ours[0], theirs[0]) == ("cuConv auto", "cuDNN fft")
    assert ours[6:] == [11.0, 12.0] and theirs[6:] == []


def test_only_the_fastest_engines_of_a_case_are_kept(tmp_path):
    engines = [row(f"eng{us}_k1=0", float(us), provider="cudnn_engine") for us in range(20, 30)]
    results = measured(
        tmp_path, [row(), *engines, row("eng1", 25.0, provider="cudnn_engine", precision="tf32"), row(m=48)]
    )
    detail, _ = page.details(results)
    engines = (f"cuDNN engine {name}" for name in ("eng20_k1=0", "eng21_k1=0", "eng22_k1=0", "eng1"))
    assert [name for name, *_ in detail] == ["cuConv auto", *engines]
    assert page.engine_notes(results) == ["cuDNN engines: the 3 fastest of 10 in FP32, the 1 fastest of 1 in TF32.", ""]


def test_the_page_is_one_file_that_loads_nothing(tmp_path, capsys):
    write(tmp_path / "results", SWEEP)
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 0
    path = tmp_path / GPU / "paper" / "page.html"
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    assert all(f'"{label}"' in text for label in LABELS)
    assert not re.search(r"<(script|link)\s[^>]*(src|href)=", text)
    assert f"<title>cuConv: sweep paper on {GPU}</title>" in text


def test_equal_results_give_an_equal_page(sweep):
    first = html(sweep)
    figure()  # takes numbers of Bokeh's models
    assert html(sweep) == first


def test_texts_of_the_results_are_no_markup(tmp_path):
    text = html(measured(tmp_path, marked(tmp_path)))
    assert MARKUP not in text and "</script><script>alert" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;, torch &lt;/script&gt;" in text.replace(r"\u003c", "<")  # the heading


@pytest.mark.parametrize(("rows", "device"), [([row()], GPU), ([row("default", provider="cpu")], "cpu"), (SWEEP, GPU)])
def test_nothing_to_show_or_no_bokeh_is_said_in_one_sentence(tmp_path, capsys, monkeypatch, rows, device):
    write(tmp_path, rows, device)
    if rows is SWEEP:
        monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("pip install bokeh" in error) == (rows is SWEEP)
    assert not (tmp_path / "plots").exists()


@pytest.fixture(scope="module")
def chromium():
    """A real browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """A function that opens the page of some rows without a network: the page, and the errors that it reports."""

    def opened(rows):
        write(tmp_path, rows)
        assert main(["--results", str(tmp_path), "--out", str(tmp_path)]) == 0
        shown = chromium.new_context(offline=True, viewport={"width": 1100, "height": 2000}).new_page()
        complaints: list[str] = []
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())
        shown.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        shown.goto(f"file://{tmp_path}/{GPU}/paper/page.html")
        shown.locator(".bk-data-table .slick-row").first.wait_for()
        return shown, complaints

    return opened


def _rows(shown, table):
    """The cells of each row of a table: 0 is that of the cases, 1 that of the algorithms."""
    rows = shown.locator(".bk-data-table").nth(table).locator(".slick-row").all()
    return [
        row.locator(".slick-cell").all_inner_texts() for row in sorted(rows, key=lambda row: row.bounding_box()["y"])
    ]


def test_in_a_browser(opened):
    shown, complaints = opened(SWEEP)
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [cells[0] for cells in _rows(shown, 0)] == [*LABELS, "7-1-5-32-832"]

    shown.get_by_text("14-1-1-16-480").click()
    shown.get_by_text("14-1-1-16-480: googlenet, 5a_5x5red").wait_for()
    assert [cells[:2] for cells in _rows(shown, 1)] == [
        ["cuDNN implicit_gemm", "10.00"], ["cuConv auto", "20.00"], ["cuBLAS bmm", "40.00"],
    ]  # fmt: skip

    shown.get_by_label("speedup over").select_option("cuBLAS bmm")
    shown.get_by_text("2 cases: geometric mean 1.00x, 1 won").wait_for()
    assert _rows(shown, 0)[0][5:] == ["5.00", "0.50", "cuBLAS bmm"]

    shown.get_by_role("button", name="128", exact=True).click()
    shown.get_by_label("text in the case").press_sequentially("7-1-")
    shown.get_by_text("1 cases: geometric mean 0.50x, 0 won").wait_for()
    assert [cells[0] for cells in _rows(shown, 0)] == ["7-1-1-32-832", "7-1-1-48-832", "7-1-3-32-832", "7-1-5-32-832"]

    shown.locator(".slick-header-column", has_text="cuConv auto, us").click()
    assert [cells[4] for cells in _rows(shown, 0)] == ["10.00", "10.00", "10.00", "40.00"]
    assert complaints == []


def test_a_view_can_be_linked_and_a_hidden_case_has_no_details(opened):
    shown, complaints = opened(SWEEP)
    shown.get_by_text("14-1-1-16-480").click()
    shown.get_by_label("speedup over").select_option("cuBLAS bmm")
    shown.get_by_label("text in the case").press_sequentially("7-1-")
    shown.get_by_text("No case is selected.").wait_for()  # a filter hides it
    assert _rows(shown, 1) == []
    shown.get_by_text("7-1-1-48-832").click()
    shown.get_by_role("button", name="128", exact=True).click()
    linked = shown.context.new_page()
    linked.goto(shown.url)
    linked.get_by_text("7-1-1-48-832: googlenet").wait_for()
    assert linked.get_by_label("speedup over").input_value() == "cuBLAS bmm"
    assert linked.get_by_label("text in the case").input_value() == "7-1-"
    assert _rows(linked, 0) == _rows(shown, 0)
    assert linked.url == shown.url and "batches=1-8&" in linked.url
    linked.goto(re.sub("#.*", "#rival=nobody&case=nothing", shown.url))
    linked.get_by_text("No case is selected.").wait_for()
    assert complaints == []


def test_the_page_is_as_wide_as_a_phone(opened, tmp_path):
    NETWORKS.write(tmp_path / GPU / "networks", [time(10.0, contender=name) for name in (CUCONV, *TORCH_CONTENDERS)])
    shown, complaints = opened(SWEEP)
    shown.set_viewport_size({"width": 375, "height": 800})
    shown.wait_for_function("document.documentElement.scrollWidth <= 375")
    assert complaints == []


def test_the_choices_in_a_browser(opened):
    tf32 = [row("auto", 5.0, precision="tf32"), row("gemm", 8.0, provider="cudnn", precision="tf32")]
    shown, complaints = opened([*THREE_TIMES, *tf32])
    assert _rows(shown, 0)[0][4:] == ["10.00", "30.00", "3.00", "cuDNN gemm"]
    shown.get_by_label("time", exact=True).select_option(label="cold: L2 flushed before each call")
    shown.get_by_text("2 cases: geometric mean 1.58x, 2 won").wait_for()
    assert _rows(shown, 0)[0][4:] == ["20.00", "25.00", "1.25", "cuDNN fft"]
    shown.get_by_label("precision of the rival").select_option(label="FP32 or TF32, the faster one")
    shown.get_by_text("0 cases: none has both times").wait_for()  # TF32 has hot times alone
    shown.get_by_label("time", exact=True).select_option(label="hot: calls one after another")
    shown.get_by_text("1 cases: geometric mean 0.80x, 0 won").wait_for()
    shown.get_by_label("precision of cuConv").select_option(label="TF32")
    shown.get_by_text("1 cases: geometric mean 1.60x, 1 won").wait_for()
    assert _rows(shown, 0)[0][4:] == ["5.00", "8.00", "1.60", "cuDNN gemm (TF32)"]
    assert complaints == []


def test_a_sorted_table_shows_its_first_row(opened):
    rows = [one for m in range(1, 101) for one in (row(us=10.0, m=m), row("gemm", 1000.0 - m, provider="cudnn", m=m))]
    shown, complaints = opened(rows)
    assert _rows(shown, 0)[0][0] == "7-1-1-1-832"  # selected, and of the largest speedup
    shown.locator(".slick-header-column", has_text="speedup").click()
    assert _rows(shown, 0)[0][6] == "90.00"
    text = shown.get_by_label("text in the case")
    text.press_sequentially("7-1-1")
    assert text.input_value() == "7-1-1"  # the table does not take the focus
    assert _rows(shown, 0)[0][6] == "90.00"
    assert complaints == []


def test_markup_is_text_in_a_browser(opened, tmp_path):
    shown, complaints = opened(marked(tmp_path))
    assert shown.get_by_text(MARKUP).count() >= 4  # the heading, both tables and the title of the algorithms
    dots = shown.locator(".bk-Figure").nth(1).locator(".bk-CartesianFrame").bounding_box()
    # The only dot: a speedup of 2 on an axis from 1 to 2, which reaches 5% further at both ends.
    shown.mouse.move(dots["x"] + dots["width"] / 2, dots["y"] + dots["height"] / 22)
    shown.locator(".bk-Tooltip", has_text=MARKUP).first.wait_for()
    assert shown.locator("img").count() == 0
    assert complaints == []
