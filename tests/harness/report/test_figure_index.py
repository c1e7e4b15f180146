"""The table of all figures: which files it lists, and a figure that it does not know."""

import pytest

from harness.errors import ResultsError
from harness.report.figure_index import figures_table
from tests.harness.report.helpers import cells


def test_every_committed_figure_has_a_link_and_a_sentence(tmp_path):
    plots = tmp_path / "plots"
    assert "report figures" in figures_table(plots, "../plots")
    stems = ["gpu/paper/speedup_two_stage_3x3", "gpu/strided/map", "gpu/paper/cold/map", "cpu/smoke/map",
             "gpu/paper-against-best/map"]  # fmt: skip
    for stem in stems:
        (plots / stem).parent.mkdir(parents=True, exist_ok=True)
        (plots / f"{stem}.png").touch()
    table = cells(figures_table(plots, "../plots"))
    assert [key for key in table if "paper" in key or "strided" in key] == ["gpu paper", "gpu strided"]
    assert "cpu" not in table and table["gpu strided"][1] == "[map](../plots/gpu/strided/map.png)"
    assert "`two_stage`" in table["gpu paper"][2] and "3x3" in table["gpu paper"][2]
    (plots / "gpu/strided/new.png").touch()
    with pytest.raises(ResultsError, match=r"gpu/strided/new\.png"):
        figures_table(plots, "../plots")
