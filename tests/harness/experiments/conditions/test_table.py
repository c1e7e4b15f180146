"""The table of conditions; expected numbers are worked out by hand."""

import pytest

from harness.cases.catalogue import load_sweep
from harness.errors import ResultsError
from harness.experiments.conditions.rows import CONDITION_TIMES, ConditionTime
from harness.experiments.conditions.table import conditions_of
from tests.harness.report.helpers import cells
from tests.helpers import GPU

CASES = load_sweep("smoke").cases[:2]
RIVALS = (("torch", "default"), ("cudnn", "gemm"))


def written(root, times):
    """Write the rows of a device; times: microseconds by (case, condition), of ours and of the rival."""
    rows = [
        ConditionTime(CASES[case].key, *name, condition, 1, (us,) * 9)
        for (case, condition), both in times.items()
        for name, us in zip((("cuconv", "auto"), RIVALS[case]), both, strict=True)
    ]
    CONDITION_TIMES.write(root / GPU / "conditions", rows)
    return root / GPU


def test_each_condition_has_its_speedup_and_what_it_does_to_both_sides(tmp_path):
    table = conditions_of(written(tmp_path, {
        (0, "hot"): (10.0, 20.0), (1, "hot"): (10.0, 80.0),  # 2x and 8x
        (0, "sustained"): (20.0, 20.0), (1, "sustained"): (20.0, 80.0),  # 1x, a tie, and 4x
        (0, "rotated"): (40.0, 20.0), (1, "rotated"): (10.0, 320.0),  # 0.5x and 32x
    }))  # fmt: skip
    assert cells(table)["hot"] == ["4.00x", "2 of 2", "2.00x", "1.00x", "1.00x"]
    assert cells(table)["sustained"] == ["2.00x", "1 of 2", "1.00x", "2.00x", "1.00x"]
    assert cells(table)["rotated"] == ["4.00x", "1 of 2", "0.50x", "2.00x", "2.00x"]


def test_a_time_that_one_side_lacks_is_compared_with_none(tmp_path):
    rows = [
        ConditionTime(CASES[0].key, "cuconv", "auto", "hot", 1, (10.0,) * 9),
        ConditionTime(CASES[0].key, "cudnn", "fft", "hot", 1, (30.0,) * 9),
        ConditionTime(CASES[0].key, "cuconv", "auto", "rotated", 4, (20.0,) * 9),
    ]
    CONDITION_TIMES.write(tmp_path / GPU / "conditions", rows)
    table = cells(conditions_of(tmp_path / GPU))
    assert table["hot"] == ["3.00x", "1 of 1", "3.00x", "1.00x", "1.00x"]
    assert table["rotated"] == ["-", "-", "-", "2.00x", "-"]
    assert table["sustained"] == ["-"] * 5


def test_without_times_a_sentence_says_what_to_run(tmp_path):
    assert "python -m harness conditions" in conditions_of(tmp_path / GPU)


def test_another_condition_or_file_is_refused(tmp_path):
    device = written(tmp_path, {(0, "hot"): (10.0, 20.0)})
    path = CONDITION_TIMES.path(device)
    path.write_text(path.read_text().replace(",hot,", ",warm,"))
    with pytest.raises(ResultsError, match="hot, sustained, rotated"):
        conditions_of(device)
    path.write_text("batch,h\n1,2\n")
    with pytest.raises(ResultsError, match="lacks the column"):
        conditions_of(device)
