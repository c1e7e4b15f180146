"""The tables of kernels, from files that the tests write; expected numbers are worked out by hand."""

import pandas as pd

from harness.experiments.kernels.rows import COUNTERS, TIMES
from harness.experiments.kernels.table import TABLES, counters_of, times_table
from harness.store.environment import ROOT
from tests.harness.report.helpers import cells


def times(*rows: tuple[str, str, str, str, float]) -> pd.DataFrame:
    """Rows of table 4 from (configuration, provider, algorithm, kernel, us)."""
    return pd.DataFrame([(4, *row[:4], 20, row[4]) for row in rows], columns=list(TIMES[4].columns))


def test_a_table_has_kernels_totals_and_the_smallest_in_bold():
    rows = times(
        ("A", "cudnn", "winograd_nonfused", "transform", 8.0),
        ("A", "cudnn", "winograd_nonfused", "sgemm", 60.0),
        ("B", "cudnn", "winograd_nonfused", "transform", 20.0),
        ("B", "cudnn", "winograd_nonfused", "sgemm_large", 240.5),
        ("B", "cudnn", "fft", "fft", 300.0),
        ("A", "cuconv", "two_stage", "scalar_products", 50.25),
        ("A", "cuconv", "two_stage", "sum", 5.0),
        ("B", "cuconv", "two_stage", "scalar_products", 461.0),
    )
    assert times_table(rows) == "\n".join([
        "The paper's table 4: device time in us.",
        "",
        "| algorithm               | kernel            | A: 7-1-3-384-192 | B: 13-1-3-384-384 |",
        "| ----------------------- | ----------------- | ---------------: | ----------------: |",
        "| cuDNN winograd_nonfused | `transform`       |             8.00 |             20.00 |",
        "| cuDNN winograd_nonfused | `sgemm`           |            60.00 |                   |",
        "| cuDNN winograd_nonfused | `sgemm_large`     |                  |            240.50 |",
        "| cuDNN winograd_nonfused | *Total*           |            68.00 |        **260.50** |",
        "| cuDNN fft               | `fft`             |                  |            300.00 |",
        "| cuDNN fft               | *Total*           |                  |            300.00 |",
        "| cuConv two_stage        | `scalar_products` |            50.25 |            461.00 |",
        "| cuConv two_stage        | `sum`             |             5.00 |                   |",
        "| cuConv two_stage        | *Total*           |        **55.25** |            461.00 |",
    ])  # fmt: skip


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = times(("A", "cuconv", "two_stage", "a<1, 2>", 3.25))
    path = TIMES[4].write(tmp_path, rows.itertuples(index=False))
    pd.testing.assert_frame_equal(TIMES[4].read(path), rows, check_dtype=False)


def test_the_committed_files_are_readable_and_have_every_configuration_of_both_sides():
    device = ROOT / "results" / "nvidia-h200"
    assert len(COUNTERS.find(device))
    for number, table in TIMES.items():
        rows = table.find(device)
        found = {(one.configuration, one.provider) for one in rows.itertuples()}
        assert found == {(name, who) for name in TABLES[number] for who in ("cudnn", "cuconv")}


def test_counters_are_those_of_one_algorithm(tmp_path):
    path = tmp_path / "profile" / "counters.csv"
    path.parent.mkdir()
    text = "7-1-1-8-16,fp16x3,pack_weights,3.14,0.00,38.4,20.6,1.96,0.07,12\n7-1-1-8-16,fp16x3,fp16x3,9,1,2,3,4,5,6\n"
    path.write_text(f"{','.join(COUNTERS.columns)}\n{text}7-1-3-8-16,two_stage,sum_planes,2,1,1,1,1,1,1\n")
    table = cells(counters_of(tmp_path, "fp16x3"))
    assert table["7-1-1-8-16 pack_weights"] == ["pack_weights", "3.1", "0", "38", "21", "2", "0", "12"]
    assert table["7-1-1-8-16 fp16x3"] == ["fp16x3", "9.0", "1", "2", "3", "4", "5", "6"]
    assert len(table) == 4, "a header, a rule, and two kernels"
    assert counters_of(tmp_path, "gemv").endswith("profile/counters.csv is of gemv.")
