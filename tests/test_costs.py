"""costs.toml: what is read is what was written, and what is wrong is told."""

from dataclasses import dataclass

import pytest

from cuconv import costs
from cuconv.algorithms import ALGORITHMS
from cuconv.costs import CostsError, constant


@dataclass(frozen=True, slots=True)
class Made:
    start: float = constant("a launch")
    block: float = constant("a block")


def test_every_algorithm_has_its_section():
    for name, module in ALGORITHMS.items():
        assert costs.load(module.Costs, name) == module.COSTS


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "costs.toml"
    path.write_text(costs.text({"made": Made(1.25, 1e-7)}, ["Of a test."]))
    assert costs.load(Made, "made", path) == Made(1.25, 1e-7)
    assert path.read_text().splitlines() == [
        "# Of a test.",
        "",
        "[made]",
        "start = 1.25   # a launch",
        "block = 1e-07  # a block",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"no section \[made\]: add it with a guess for each of start, block"),
        ("[made]\nstart = 1\n", "look at 'block'"),
        ("[made]\nstart = 1\nblock = 2\nlaunch = 3\n", "look at 'launch'"),
        ("[made]\nstart = 0\nblock = 1\n", "start is 0: must be a number above 0"),
        ("[made]\nstart = 'x'\nblock = 1\n", "start is 'x': must be a number above 0"),
        ("[made\n", "not readable"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(tmp_path, text, why):
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(CostsError, match=why):
        costs.load(Made, "made", path)
