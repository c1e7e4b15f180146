"""The table of prepared weights."""

import pytest

from harness.report.prepared import gains, prepared_table
from harness.sweep.comparisons import Results
from tests.helpers import GPU, row, write

ROWS = [
    row("auto", 6.0),
    row("auto", 4.0, provider="cuconv_prepared"),
    row("auto", 2.0, batch=8),
    row("auto", 2.0, batch=8, provider="cuconv_prepared"),
    row("fp16x3", 1.0, batch=8),  # not what auto took
    row("auto", 9.0, batch=16),  # without a prepared layer
]


def sweep(tmp_path, rows):
    write(tmp_path, rows)
    return Results.read(next(tmp_path.glob(f"{GPU}/*/measurements.csv")).parent)


def test_a_gain_is_of_a_case_that_both_have(tmp_path):
    found = gains(sweep(tmp_path, ROWS).frame)
    assert list(found.gain) == pytest.approx([1.5, 1.0]) and list(found.batch) == [1, 8]


def test_the_table_has_means_and_extremes(tmp_path):
    table = prepared_table(sweep(tmp_path, ROWS))
    assert "1.225x | 1.00x | 1.50x" in " ".join(table.split())


def test_without_rows_a_sentence_says_what_to_run(tmp_path):
    table = prepared_table(sweep(tmp_path, [row("auto", 1.0)]))
    assert "python -m harness.run --provider cuconv cuconv_prepared" in table and "Not measured" in table
