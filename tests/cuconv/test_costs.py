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


def test_the_files_have_the_sections_of_all_algorithms_and_no_other():
    sections = {path: tomllib.loads(path.read_text()) for path in costs.PATHS.values()}
    for path, found in sections.items():
        wanted = {name for precision in costs.PATHS if costs.PATHS[precision] == path for name in offering(precision)}
        assert list(found) == [name for name in ALGORITHMS if name in wanted]
    for precision in costs.PATHS:
        for name in offering(precision):
            algorithm = ALGORITHMS[name]
            assert costs.load(algorithm.costs_type, name, precision) == algorithm.costs(precision)


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
    assert "# a launch" in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[made\n", "made = 3\n", "[[made]]\nstart = 1\n", "[made]\nstart = 1\n"),
        "[made]\nstart = 1\nblock = 2\nlaunch = 3\n",
        "[made]\nblock = 1\n[made.start]\nx = 1\n",
        *(f"[made]\nblock = 1\nstart = {value}\n" for value in ("0", "'x'", "nan", "inf", "true", "[1]", "-1")),
        *(f"[made]\nblock = 1\nstart = {value}\n" for value in (10**400, f"0x{'f' * 5000}", "9" * 5000, "[" * 5000)),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_wrong_in_a_file_is_told(path, text):
    path.write_text(text)
    with pytest.raises(CostsError):
        costs.load(Made, "made", "tf32")


def test_what_is_no_file_of_text_is_told(path):
    with pytest.raises(CostsError):
        costs.load(Made, "made", "tf32")
    path.mkdir()
    with pytest.raises(CostsError):
        costs.load(Made, "made", "tf32")
    path.rmdir()
    path.write_bytes(b"[made]\nstart = 1 # \xff\nblock = 1\n")
    with pytest.raises(CostsError):
        costs.load(Made, "made", "tf32")
