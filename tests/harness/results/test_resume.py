"""Resuming: rows that lack a time that they qualify for are not done."""

import pytest

from harness.results.records import ResultsFolder
from harness.results.resume import done
from tests.helpers import GPU, row, write

TWICE = {"separated": 1.0, "cold": 1.0}


def rival(name, us, **options):
    return row(name, us, provider="cudnn_engine", environment="e1", **options)


ROWS = [
    row("auto", 10.0, environment="e1", **TWICE),
    row("two_stage", 50.0, environment="e1"),
    row("fp16x3", 9.0, environment="e1"),
    row("tf32x3_gemm", status="unsupported", environment="e1"),
    *[rival(f"eng{i}", 20.0 + i, **TWICE) for i in range(1, 4)],
    rival("eng4", 24.0, separated=1.0),
    rival("eng5", 25.0),
    rival("eng6", 26.0),
    rival("eng7", 5.0, precision="tf32"),  # the fastest of its precision
    rival("eng8", 30.0, batch=8),  # the fastest of its case
    row("auto", 10.0, environment="e2", batch=8, **TWICE),
]


@pytest.mark.parametrize(
    ("environments", "other_times", "missing"),
    [
        ({"e1", "e2"}, False, set()),
        ({"e1"}, False, {("auto", "8")}),
        ({"e1", "e2"}, True, {("two_stage", "1"), ("eng4", "1"), ("eng5", "1"), ("eng7", "1"), ("eng8", "8")}),
    ],
)
def test_a_row_that_lacks_a_time_that_it_qualifies_for_is_not_done(tmp_path, environments, other_times, missing):
    path = write(tmp_path, ROWS)
    with ResultsFolder(path.parent) as folder:
        found = done(folder, environments, GPU, other_times)
        assert {
            (folder.cell(key, "algorithm"), folder.cell(key, "batch")) for key in folder.rows.keys() - found
        } == missing
        assert found <= folder.rows.keys()
