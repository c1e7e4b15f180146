"""The same kernel timed twice in one sweep; expected numbers are worked out by hand."""

from dataclasses import replace

from harness.report.clocks import clocks_table, pairs
from tests.harness.report.helpers import cells
from tests.helpers import measured, row


def at(measurement, clock, power=500.0):
    return replace(measurement, sm_clock_mhz=clock, power_w=power)


def test_pairs_are_rows_of_one_launch(tmp_path):
    rows = [
        at(row("auto", 10.0, detail="fp16x3 tile=1"), 1980), at(row("fp16x3", 11.0, detail="fp16x3 tile=1"), 1980),
        at(row("two_stage", 50.0, detail="two_stage rows=1"), 1980),
        at(row("batch_invariant", 12.0, detail="fp16x3 tile=1"), 1980),
        at(row("auto", 10.0, m=48, detail="fp16x3 tile=1"), 1980),  # its algorithm was not measured
    ]  # fmt: skip
    (pair,) = pairs(measured(tmp_path, rows)).itertuples()
    assert (pair.algorithm, pair.us_1, pair.us_2) == ("fp16x3", 10.0, 11.0)


def test_times_are_compared_at_equal_and_at_different_clocks(tmp_path):
    rows = [
        at(row("auto", 100.0, detail="fp16x3 a"), 1980), at(row("fp16x3", 103.0, detail="fp16x3 a"), 1980),
        at(row("auto", 100.0, m=48, detail="fp16x3 a"), 1980, 600.0),
        at(row("fp16x3", 120.0, m=48, detail="fp16x3 a"), 1650, 710.0),
    ]  # fmt: skip
    table = clocks_table(measured(tmp_path, rows))
    assert "At equal clocks, on 1 of 2 cases" in table and "3.0% at most" in table
    assert cells(table)["7-1-1-48-832"] == [
        "fp16x3", "100.0", "120.0", "1980", "1650", "600", "710", "1.200", "1.200"
    ]  # fmt: skip


def test_without_clocks_a_sentence_says_so(tmp_path):
    rows = [row("auto", 10.0, detail="fp16x3 a"), row("fp16x3", 10.0, detail="fp16x3 a")]
    assert "No clocks were read" in clocks_table(measured(tmp_path, rows))
