"""The README's results, between their markers: samples.SWEEP, whose figures are worked out by hand."""

import json

import pytest

from harness.report import tables
from harness.report.readme import README_BEGIN, README_END
from tests.helpers import SWEEP, row, write
from tests.harness.report.test_tables import GPU, cells


@pytest.fixture
def readme(tmp_path):
    """A README with markers beside a results folder with samples.SWEEP."""
    write(tmp_path / "results", [row("auto", 10.0, environment="e1"), *SWEEP[1:]])
    path = tmp_path / "README.md"
    path.write_text(f"# Before\n{README_BEGIN}\nold\n{README_END}\nafter\n")
    return path


def fill(readme, *arguments):
    return tables.main(["--results", str(readme.parent / "results"), "--readme", str(readme), *arguments])


def test_readme_is_rewritten_between_its_markers(readme):
    assert fill(readme) == 0
    text = readme.read_text()
    assert text.startswith(f"# Before\n{README_BEGIN}\n") and text.endswith(f"\n{README_END}\nafter\n")
    assert "old" not in text
    headline = cells(text.split("**cuConv two_stage")[0])
    assert headline["batch"] == ["1x1", "3x3", "5x5", "all"]
    assert headline["1"] == ["1.44x, 2/3", "0.25x, 0/1", "-", "0.93x, 2/4"]  # (3 * 2 * 0.5 * 0.25) ** (1 / 4)
    assert headline["all"] == ["1.64x, 3/6", "0.25x, 0/1", "-", "1.20x, 3/7"]
    for k in (1, 3, 5):
        assert f"(plots/{GPU}/paper/speedup_auto_{k}x{k}.png)" in text
    assert fill(readme) == 0
    assert readme.read_text() == text


def test_readme_says_where_and_when(readme):
    dates = ("2025-11-20T10:00:00", "2025-11-22T10:00:00")
    stored = {
        "e1": {
            "gpu": "NVIDIA Test", "driver": "580.1", "cudnn": 92000, "torch": "2.13.0", "commit": "abc",
            "commands": [{"command": "x", "date": date} for date in dates],
        },
        "stale": {"gpu": "another", "date": "2001-01-01"},
    }  # fmt: skip
    path = readme.parent / f"results/{GPU}/paper/environment.json"
    path.write_text(json.dumps({"environments": stored}))
    assert fill(readme) == 0
    sentence = (
        "Measured from 2025-11-20 to 2025-11-22 on NVIDIA Test, driver 580.1, cuDNN 92000, torch 2.13.0, commit abc."
    )
    assert sentence in readme.read_text()
    path.write_text("not json")
    assert fill(readme) == 0
    assert f"Measured on {GPU}." in readme.read_text()


@pytest.mark.parametrize("text", ["no markers", f"{README_BEGIN} only", f"{README_END} {README_BEGIN}"])
def test_readme_without_markers_is_left_alone(readme, capsys, text):
    readme.write_text(text)
    assert fill(readme) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "lacks the lines" in captured.err
    assert readme.read_text() == text


def test_readme_that_does_not_exist(readme, capsys):
    readme.unlink()
    assert fill(readme) == 2
    assert "cannot read" in capsys.readouterr().err


def test_readme_leaves_a_cpu_out_unless_asked_for(readme, capsys):
    rows = [row(name, 2.0, provider="cpu") for name in ("two_stage", "native")]
    write(readme.parent / "results", rows, device="cpu")
    assert fill(readme) == 0
    assert "### cpu" not in readme.read_text()
    assert fill(readme, "--device", "cpu") == 0
    assert "### cpu" in readme.read_text() and f"### {GPU}" not in readme.read_text()
    (readme.parent / f"results/{GPU}/paper/measurements.csv").unlink()
    capsys.readouterr()
    assert fill(readme) == 2
    assert "only a CPU's results" in capsys.readouterr().err
