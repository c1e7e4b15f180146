"""The floor of each precision, and the share of it that is reached; expected numbers are worked out by hand."""

from dataclasses import replace

import matplotlib.style
import numpy as np
import pytest

from harness.experiments.copies import rows as bandwidth
from harness.report import floor
from harness.report.figures import figures, style
from harness.report.half import in_channels_last
from harness.report.pages import rewrite
from tests.harness.report.helpers import cells, collisions
from tests.helpers import THREE_TIMES, copies, measured, row

DEVICE = "nvidia-h200"
# At batch 8 input and output have 4.2 MB each: 0.27 GFLOP, 0.34 us at 790 TFLOP/s.
SQUARE = {"h": 64, "w": 64, "c": 64, "m": 64, "k": 1}
BYTES = 2 * (2 * 8 * 64 * 64 * 64 + 64 * 64)


def test_the_largest_of_products_copy_and_launch_is_the_floor():
    flop, copy_us = [7_900_000_000, 7_900_000, 7_900_000, 79], np.array([3.0, 12.5, 0.5, np.nan])
    assert floor.floor_us(flop, copy_us, 790e12) == pytest.approx([10.0, 12.5, 1.0, 1.0])


def half_rows(batch, ours, theirs, **sizes):
    return [
        row("auto", ours, batch=batch, precision="fp16", error=3e-4, **sizes),
        row("eng1_nhwc", theirs, provider="cudnn_engine", batch=batch, precision="fp16", error=3e-4, **sizes),
    ]


ROWS = [
    # 2 x 256 x 9 operations for each of 8 x 64 x 64 x 64 outputs: 9.66 GFLOP, 12.2 us.
    *half_rows(8, 2 * 12.2329, 4 * 12.2329, **SQUARE | {"c": 256, "k": 3}),
    *half_rows(8, 10.0, 40.0, **SQUARE),  # a copy of 4 us
    *half_rows(1, 2.0, 4.0),  # 1 us
]


def with_copies(tmp_path, device=DEVICE):
    path = bandwidth.BANDWIDTH.path(tmp_path / device)
    path.parent.mkdir(parents=True)
    copies({BYTES // 2: 2.0, BYTES: 4.0, 2 * BYTES: 4.0, 10 * BYTES: 5.0}).to_csv(path, index=False)


def test_a_table_in_half_precision_has_the_share_of_the_floor_that_both_sides_reach(tmp_path):
    with_copies(tmp_path)
    found = cells(in_channels_last(measured(tmp_path, ROWS, DEVICE), "fp16"))
    assert found["batch"][-2:] == ["floor / ours", "floor / cuDNN"]
    assert found["8"][-2:] == ["45%", "16%"]  # the roots of 0.5 * 0.4 and 0.25 * 0.1
    assert found["1"][-2:] == ["50%", "25%"]
    assert found["all"][-2:] == ["46%", "18%"]


@pytest.mark.parametrize("device", [DEVICE, "nvidia-test"])
def test_without_copies_or_a_rate_there_are_no_shares(tmp_path, device):
    if device != DEVICE:
        with_copies(tmp_path, device)
    text = in_channels_last(measured(tmp_path, ROWS, device), "fp16")
    assert cells(text)["batch"] == ["1x1", "3x3", "all"] and "floor" not in text


def test_tf32_in_channels_last_has_the_rate_of_fp16_and_its_own_subject(tmp_path):
    with_copies(tmp_path)
    rows = [replace(one, precision="tf32") for one in ROWS]
    ours = [replace(one, algorithm="auto_nhwc") for one in rows if one.algorithm == "auto"]
    assert in_channels_last(measured(tmp_path / "without", rows, DEVICE), "tf32") == ""
    text = in_channels_last(measured(tmp_path, [*rows, *ours], DEVICE), "tf32")
    assert "auto_nhwc in TF32" in text and "790 TFLOP/s" in text


def drawn(results):
    with matplotlib.style.context(["default", style.STYLE]):
        return {stem: figure for stem, figure in figures(results) if stem.startswith("floor")}


def numbers(axes):
    """The texts of a panel's cells and last lines, by column and line."""
    texts = [text for text in axes.texts if text.get_text() != "HW-M-C"]
    return {tuple(round(at) for at in text.get_position()): text.get_text() for text in texts}


@pytest.mark.parametrize(
    ("precision", "stem", "algorithm", "products"),
    # 9.66 GFLOP at 790 TFLOP/s, and a third of it in FP32.
    [("fp16", "floor_fp16", "auto", 12.2325), ("fp32", "floor", "auto", 36.6975),
     ("tf32", "floor_tf32", "auto_nhwc", 12.2325)],
)  # fmt: skip
def test_a_map_has_the_share_of_each_case_the_means_and_a_frame_where_a_rival_reaches_more(
    tmp_path, precision, stem, algorithm, products
):
    with_copies(tmp_path)
    half, error = precision == "fp16", 3e-4 if precision != "fp32" else 1e-7
    square = SQUARE if half else SQUARE | {"c": 32, "m": 32}  # as many bytes, and a quarter of the products
    made = [
        (2 * products, 4 * products, {"batch": 8, **SQUARE, "c": 256, "k": 3}),
        (10.0, 5.0, {"batch": 8, **square}),  # a copy of 4 us
        (0.8, 4.0, {}),  # 1 us
        (None, 4.0, {"k": 5}),
    ]
    rows = [
        one
        for ours, theirs, sizes in made
        for one in (
            row(algorithm, ours, status="ok" if ours else "incorrect", precision=precision, error=error, **sizes),
            row("gemm", theirs, provider="cudnn", precision=precision, error=error, **sizes),
        )
    ]
    figure = drawn(measured(tmp_path, rows, DEVICE))[stem]
    one, three, five = figure.axes
    assert numbers(one) == {
        (0, 0): "125%", (1, 1): "40%",
        (0, 2): "125%", (1, 2): "40%", (0, 3): "25%", (1, 3): "80%",
    }  # fmt: skip
    assert numbers(three) == {(1, 0): "50%", (1, 1): "50%", (1, 2): "25%"}
    assert numbers(five)[0, 0] == "\u00d7", "ours did not run"
    assert [len(axes.collections[1].get_paths()) for axes in figure.axes] == [1, 0, 0]
    above, copy = one.collections[0].get_facecolors()
    assert sum(above[:3]) < sum(copy[:3]), "the nearer to the floor, the darker"
    assert not collisions(figure)


@pytest.mark.parametrize(("us", "is_above"), [(0.8, True), (2.0, False)])
def test_a_map_says_why_a_share_is_above_100_percent_only_where_one_is(tmp_path, us, is_above):
    with_copies(tmp_path)
    figure = drawn(measured(tmp_path, [row("auto", us), row("gemm", 4.0, provider="cudnn")], DEVICE))["floor"]
    assert any("Winograd" in text.get_text() for text in figure.texts) == is_above


@pytest.mark.parametrize("device", [DEVICE, "nvidia-test"])
def test_without_copies_or_a_rate_there_is_no_map(tmp_path, device):
    if device != DEVICE:
        with_copies(tmp_path, device)
    assert not drawn(measured(tmp_path, [*ROWS, *THREE_TIMES], device))


def test_only_hot_times_have_a_map_and_the_page_of_results_links_it(tmp_path):
    with_copies(tmp_path)
    results = measured(tmp_path, THREE_TIMES, DEVICE)
    assert drawn(results).keys() == {"floor"} and not drawn(results.at("cold"))
    page = tmp_path / "page.md"
    page.write_text("<!-- table:standing -->\n<!-- table:end -->\n")
    assert rewrite(page, [results], tmp_path / "plots") == 1
    assert "/paper/floor.png" in page.read_text() and "floor / cuDNN" in cells(page.read_text())["batch"]
