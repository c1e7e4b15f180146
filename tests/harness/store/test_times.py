"""The three times of a row: their columns, and rows as one of them shows them."""

import pytest

from harness.store.times import at_time, mean_column, run_columns
from harness.sweep.records import read
from tests.helpers import row, write

ROWS = [row("auto", 10.0, separated=11.0, cold=15.0), row("gemm", 30.0, provider="cudnn", separated=31.0)]


def test_columns_of_a_time():
    assert (run_columns("hot")[0], run_columns("cold")[8], len(run_columns("separated"))) == (
        "run_1_us",
        "cold_run_9_us",
        9,
    )
    assert [mean_column(time) for time in ("hot", "separated", "cold")] == ["mean_us", "separated_us", "cold_us"]


@pytest.mark.parametrize(
    ("time", "auto", "gemm"), [("hot", 10.0, 30.0), ("separated", 11.0, 31.0), ("cold", 15.0, None)]
)
def test_rows_at_a_time_have_it_where_the_hot_one_was(tmp_path, time, auto, gemm):
    frame = read(write(tmp_path, ROWS))
    at = at_time(frame, time).set_index("algorithm")
    for column in ("mean_us", "run_1_us", "run_3_us"):
        assert at.loc["auto", column] == auto
        assert at.loc["gemm", column] == gemm if gemm else at[column].isna()["gemm"]
    assert frame.mean_us.tolist() == [10.0, 30.0], "the rows themselves stay as they were"
