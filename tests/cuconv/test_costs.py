"""The files of constants: every algorithm has its section, written constants are read again, errors are told."""

import tomllib
from dataclasses import dataclass, replace
from math import inf

import pytest

from cuconv import select
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.core import costs
from cuconv.core.costs import CostsError, constant
from cuconv.device import H200
from tests.cuconv.algorithms.problems import typical_problem


@dataclass(frozen=True, slots=True)
class Made:
    start: float = constant("a launch")
    block: float = constant("a block")


def test_every_algorithm_has_its_section_in_each_precision():
    for name, algorithm in ALGORITHMS.items():
        for precision in algorithm.precisions:
            assert costs.load(algorithm.costs_type, name, precision) == algorithm.costs(precision)


def test_every_section_belongs_to_an_algorithm_that_offers_the_precision():
    for precision, path in costs.PATHS.items():
        assert tuple(tomllib.loads(path.read_text())) == offering(precision)


@pytest.mark.parametrize("name", offering("tf32"))
def test_a_plan_is_timed_with_the_constants_of_its_own_precision(name):
    """An FP32 plan may stand in for a TF32 one; its predicted time is then that of FP32."""
    in_fp32, algorithm = typical_problem(name), ALGORITHMS[name]
    in_tf32 = replace(in_fp32, precision="tf32")
    for planned in (in_fp32, in_tf32):
        plan = select.plan(planned, H200, name)
        expected = algorithm.estimate_us(planned, H200, plan.config, algorithm.costs(planned.precision))
        slowdown = algorithm.slowdown(planned, H200, plan.config, CallOptions())
        assert select.predicted_us(in_tf32, H200, plan) == expected * (slowdown if slowdown < inf else 1)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file in the place of costs_tf32.toml."""
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
        ("made = 3\n", r"no section \[made\]"),
        ("[[made]]\nstart = 1\n", r"no section \[made\]"),
        ("[made]\nstart = nan\nblock = 1\n", "start is nan: must be a number above 0"),
        ("[made]\nstart = inf\nblock = 1\n", "start is inf: must be a number above 0"),
        ("[made]\nstart = true\nblock = 1\n", "start is True: must be a number above 0"),
        ("[made]\nstart = [1]\nblock = 1\n", r"start is \[1\]: must be a number above 0"),
        ("[made]\nblock = 1\n[made.start]\nx = 1\n", "start is .*: must be a number above 0"),
        (f"[made]\nstart = {10**400}\nblock = 1\n", "start is 0x.*: must be a number above 0"),
        (f"[made]\nstart = 0x{'f' * 5000}\nblock = 1\n", "start is 0x.*: must be a number above 0"),
        (f"[made]\nstart = {'9' * 5000}\nblock = 1\n", "not readable"),
        (f"[made]\nstart = {'[' * 5000}\nblock = 1\n", "not readable"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(path, text, why):
    path.write_text(text)
    with pytest.raises(CostsError, match=why):
        costs.load(Made, "made", "tf32")


def test_what_is_no_file_of_text_is_told_in_a_sentence(path):
    with pytest.raises(CostsError, match="not readable"):
        costs.load(Made, "made", "tf32")
    path.mkdir()
    with pytest.raises(CostsError, match="not readable"):
        costs.load(Made, "made", "tf32")
    path.rmdir()
    path.write_bytes(b"[made]\nstart = 1 # \xff\nblock = 1\n")
    with pytest.raises(CostsError, match="not readable"):
        costs.load(Made, "made", "tf32")
