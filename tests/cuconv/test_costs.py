"""costs.toml and costs_tf32.toml: what is read is what was written, and what is wrong is told."""

import tomllib
from dataclasses import dataclass, replace

import pytest

from cuconv import costs
from cuconv.algorithms import ALGORITHMS, offering, precisions_of
from cuconv.costs import CostsError, constant
from cuconv.device import H200
from tests.cuconv.algorithms.test_tf32 import PROBLEM, SPECIAL


@dataclass(frozen=True, slots=True)
class Made:
    start: float = constant("a launch")
    block: float = constant("a block")


def test_every_algorithm_has_its_section_in_each_precision():
    for name, module in ALGORITHMS.items():
        assert set(module.COSTS) == set(precisions_of(module))
        for precision, constants in module.COSTS.items():
            assert costs.load(module.Costs, name, precision) == constants


def test_no_section_is_of_what_there_is_not():
    for precision, path in costs.PATHS.items():
        assert tuple(tomllib.loads(path.read_text())) == offering(precision)


def test_costs_are_those_of_the_configuration_and_not_of_the_problem():
    """Where FP32 is allowed to stand in for TF32 its time is that of FP32."""
    for name in offering("tf32"):
        in_fp32 = SPECIAL.get(name, PROBLEM)
        in_tf32, module = replace(in_fp32, precision="tf32"), ALGORITHMS[name]
        three, one = module.configure(in_fp32, H200), module.configure(in_tf32, H200)
        for config, precision in ((three, "fp32"), (one, "tf32")):
            us = module.predicted_us(in_tf32, H200, config)
            assert us == module.predicted_us(in_tf32, H200, config, module.COSTS[precision])


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Of the costs in TF32, for a test."""
    path = tmp_path / "costs_tf32.toml"
    monkeypatch.setitem(costs.PATHS, "tf32", path)
    return path


def test_what_is_written_is_read_again(path):
    path.write_text(costs.text({"made": Made(1.25, 1e-7)}, ["Of a test."]))
    assert costs.load(Made, "made", "tf32") == Made(1.25, 1e-7)
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
def test_what_is_wrong_is_told_in_a_sentence(path, text, why):
    path.write_text(text)
    with pytest.raises(CostsError, match=why):
        costs.load(Made, "made", "tf32")
