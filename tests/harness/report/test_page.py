"""The page of a sweep: what it shows, worked out by hand for helpers.SWEEP, and how it behaves in a real browser."""

import re
import shutil
import sys

import pytest

from harness.report import page
from harness.report.page.command import main
from tests.helpers import GPU, SWEEP, measured, row, write

LABELS = ["7-1-1-32-832", "7-1-1-48-832", "14-1-1-16-480", "7-8-1-32-832", "7-128-1-32-832", "7-1-3-32-832"]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


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
    times = page.rival_times(sweep)
    assert next(iter(times)) == "the best cuDNN"
    assert times["the best cuDNN"] == [30.0, 20.0, 10.0, 15.0, 40.0, 10.0, None]
    assert times["best cuDNN engine"] == [None, 20.0, None, None, 40.0, None, None]
    assert times["cuBLAS bmm"] == [5.0, None, 40.0, None, None, None, None]
    assert "cuConv auto" not in times  # of itself there is no speedup
    assert "cuDNN fft" not in times  # it never ran


def test_the_sentence_above_the_table_is_that_of_all_tables(sweep):
    best = next(iter(page.rival_times(sweep).values()))
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


def test_details_have_the_other_times_where_they_were_measured(tmp_path):
    rows = [row(separated=11.0, cold=12.0), row("fft", 20.0, provider="cudnn")]
    ((ours, theirs),) = page.details(measured(tmp_path, rows))
    assert ours[6:] == [11.0, 12.0] and theirs[6:] == []


def test_only_the_fastest_engines_of_a_case_are_kept(tmp_path):
    engines = [row(f"eng{us}_k1=0", float(us), provider="cudnn_engine") for us in range(20, 30)]
    (detail,) = page.details(measured(tmp_path, [row(), *engines]))
    assert [name for name, *_ in detail] == ["cuConv auto", *(f"cuDNN engine eng{us}_k1=0" for us in (20, 21, 22))]


def test_the_page_is_one_file_that_loads_nothing(tmp_path, capsys):
    write(tmp_path / "results", SWEEP)
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 0
    path = tmp_path / GPU / "paper" / "page.html"
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    assert all(f'"{label}"' in text for label in LABELS)
    assert not re.search(r"<(script|link)\s[^>]*(src|href)=", text)


@pytest.mark.parametrize(
    ("rows", "device", "sentence"),
    [
        ([row()], GPU, "no case of .* was measured by both cuConv and a rival"),
        ([row("default", provider="cpu")], "cpu", "only a CPU's results under .*: the page shows a GPU's"),
    ],
)
def test_nothing_to_show_is_said_in_one_sentence(tmp_path, capsys, rows, device, sentence):
    write(tmp_path, rows, device)
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error) and error.count("\n") == 1
    assert not (tmp_path / "plots").exists()


def test_without_bokeh_the_remedy_is_said(tmp_path, capsys, monkeypatch):
    write(tmp_path, SWEEP)
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2
    assert "pip install bokeh" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A page of helpers.SWEEP in a real browser without a network, and the errors that it reports."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    folder = tmp_path_factory.mktemp("page")
    write(folder, SWEEP)
    assert main(["--results", str(folder), "--out", str(folder)]) == 0
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = chromium.new_context(offline=True, viewport={"width": 1400, "height": 2000}).new_page()
        complaints: list[str] = []
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        shown.goto(f"file://{folder}/{GPU}/paper/page.html")
        shown.get_by_text("7-1-1-32-832").first.wait_for()
        yield shown, complaints
        chromium.close()


def _rows(shown, table):
    """The cells of each row of a table: 0 is that of the cases, 1 that of the algorithms."""
    rows = shown.locator(".bk-data-table").nth(table).locator(".slick-row").all()
    return [
        row.locator(".slick-cell").all_inner_texts() for row in sorted(rows, key=lambda row: row.bounding_box()["y"])
    ]


def test_in_a_browser(browser):
    shown, complaints = browser
    assert [cells[0] for cells in _rows(shown, 0)] == [*LABELS, "7-1-5-32-832"]

    shown.get_by_text("14-1-1-16-480").click()
    shown.get_by_text("14-1-1-16-480: googlenet, 5a_5x5red").wait_for()
    assert [cells[:2] for cells in _rows(shown, 1)] == [
        ["cuDNN implicit_gemm", "10.00"], ["cuConv auto", "20.00"], ["cuBLAS bmm", "40.00"],
    ]  # fmt: skip

    shown.get_by_label("speedup over").select_option("cuBLAS bmm")
    shown.get_by_text("2 cases: geometric mean 1.00x, 1 won").wait_for()
    assert _rows(shown, 0)[0][-2:] == ["5.00", "0.50"]

    shown.get_by_role("button", name="128", exact=True).click()
    shown.get_by_label("text in the case").fill("7-1-")
    shown.get_by_label("text in the case").press("Enter")
    shown.get_by_text("1 cases: geometric mean 0.50x, 0 won").wait_for()
    assert [cells[0] for cells in _rows(shown, 0)] == ["7-1-1-32-832", "7-1-1-48-832", "7-1-3-32-832", "7-1-5-32-832"]

    shown.locator(".slick-header-column", has_text="cuConv auto, us").click()
    assert [cells[4] for cells in _rows(shown, 0)] == ["10.00", "10.00", "10.00", "40.00"]
    assert complaints == []
