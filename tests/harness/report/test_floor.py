"""The floor of half precision, and the share of it that is reached; expected numbers are worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from harness.experiments.copies import rows as bandwidth
from harness.report import floor
from harness.report.half import in_channels_last
from tests.harness.report.helpers import cells
from tests.helpers import copies, measured, row

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


def test_tf32_in_channels_last_has_half_the_rate_and_its_own_subject(tmp_path):
    with_copies(tmp_path)
    rows = [replace(one, precision="tf32") for one in ROWS]
    ours = [replace(one, algorithm="auto_nhwc") for one in rows if one.algorithm == "auto"]
    assert in_channels_last(measured(tmp_path / "without", rows, DEVICE), "tf32") == ""
    text = in_channels_last(measured(tmp_path, [*rows, *ours], DEVICE), "tf32")
    assert "auto_nhwc in TF32" in text and "395 TFLOP/s" in text
