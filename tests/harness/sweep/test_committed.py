"""The committed rows of the sweeps: one for each case, algorithm and precision."""

import pytest

from harness.store import environment
from harness.store.csv_file import rows_of
from harness.sweep.records import KEY_COLUMNS

FOLDERS = sorted({path.parent for path in (environment.ROOT / "results").glob("*/*/measurements.csv*")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_no_row_is_replaced_by_a_later_one(folder):
    (_, header), *rows = rows_of(folder / "measurements.csv")
    places = [header.index(column) for column in KEY_COLUMNS if column in header]
    assert len({tuple(cells[place] for place in places) for _, cells in rows}) == len(rows)
