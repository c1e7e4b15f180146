"""How far made-up sweeps move, worked out by hand."""

from pathlib import Path

import pytest

from harness.report import repeatability
from harness.sweep.comparisons import Results
from tests.harness.report.helpers import cells
from tests.helpers import row, write


def sweep(*cases, **times):
    """The rows of a sweep: (batch, auto's us, gemm's us, fft's us) of each case; None where it has no time."""
    return [
        row(name, us, batch=batch, provider=provider, status="ok" if us else "error", **times)
        for batch, *each in cases
        for (name, provider), us in zip((("auto", "cuconv"), ("gemm", "cudnn"), ("fft", "cudnn")), each, strict=True)
    ]


# By the largest over the smallest less 1, auto moves by 20%, 0% and 50%; the best rival by 0%, 10% and 0%; the speedup
# by 20% (2, 2.4, 2.4), 10% (10/8, 11/8, 11/8) and 50% (12/10, 12/15, 12/15). Batch 8 has another rival in the first
# sweep. On batch 16 auto wins in one sweep of three. Batch 32 has no time in the second sweep.
SWEEPS = [
    sweep((1, 12.0, 24.0, 90.0), (8, 8.0, 11.0, 10.0), (16, 10.0, 12.0, 90.0), (32, 1.0, 2.0, 9.0)),
    sweep((1, 10.0, 24.0, 90.0), (8, 8.0, 11.0, 90.0), (16, 15.0, 12.0, 90.0), (32, None, 2.0, 9.0)),
    sweep((1, 10.0, 24.0, 90.0), (8, 8.0, 11.0, 90.0), (16, 15.0, 12.0, 90.0), (32, 3.0, 2.0, 9.0)),
]


@pytest.fixture
def folders(tmp_path):
    """Writes sweeps, and returns their folders as text."""
    return lambda sweeps: [str(write(tmp_path / f"host{i}", rows).parent) for i, rows in enumerate(sweeps)]


def test_movements_of_each_case(folders):
    moved = repeatability.movements([Results.read(Path(folder)) for folder in folders(SWEEPS)]).set_index("batch")
    assert moved.index.tolist() == [1, 8, 16], "batch 32 was not timed in every sweep"
    assert moved.mean_us.tolist() == pytest.approx([0.2, 0.0, 0.5])
    assert moved.rival_us.tolist() == pytest.approx([0.0, 0.1, 0.0])
    assert moved.speedup.tolist() == pytest.approx([0.2, 0.1, 0.5])
    assert (moved.wins.tolist(), moved.rivals.tolist()) == ([3, 3, 1], [1, 2, 1])
    assert moved.ours_us.tolist() == [[12.0, 10.0, 10.0], [8.0, 8.0, 8.0], [10.0, 15.0, 15.0]]


def test_the_report_has_medians_quantiles_winners_and_the_cases_that_move_most(folders, capsys):
    assert repeatability.main(folders(SWEEPS)) == 0
    printed = capsys.readouterr().out
    rows = cells(printed.split("The cases that move most")[0])
    assert rows["batch"] == ["cases", "cuConv auto", "95%", "the best cuDNN", "95%", "speedup", "95%"]
    assert rows["16"] == ["1", "50.0%", "50.0%", "0.0%", "0.0%", "50.0%", "50.0%"]
    # 95% of three values lie within nine tenths of the way from the second to the third.
    assert rows["all"] == ["3", "20.0%", "47.0%", "0.0%", "9.0%", "20.0%", "47.0%"]
    assert all(told in printed for told in ("every sweep on 2 of 3", "none on 0", "changes on 1.", "on 1 of 3"))
    most = cells(printed.split("The cases that move most")[1])
    assert list(most)[2:] == ["7-16-1-32-832", "7-1-1-32-832", "7-8-1-32-832"]
    assert most["7-16-1-32-832"] == ["50.0%", "10.00 15.00 15.00"]


def test_another_time_has_movements_of_its_own(folders, capsys):
    both = folders([sweep((1, 10.0, 20.0, 30.0), cold=cold) for cold in (15.0, 18.0)])
    assert repeatability.main([*both, "--time", "cold"]) == 0
    printed = capsys.readouterr().out
    assert cells(printed.split("The cases")[0])["1"][1:3] == ["20.0%", "20.0%"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_folder_is_no_comparison(folders, capsys, count):
    (folder,) = folders(SWEEPS[:1])
    assert repeatability.main([folder] * count) == 2
    assert "two different folders" in capsys.readouterr().err


NOTHING_SHARED = {
    "other cases": (sweep((64, 1.0, 2.0, 3.0)), "hot"),
    "nothing of ours": ([row("gemm", 1.0, provider="cudnn")], "hot"),
    "not cold": (SWEEPS[1], "cold"),
}


@pytest.mark.parametrize(("other", "time"), NOTHING_SHARED.values(), ids=list(NOTHING_SHARED))
def test_sweeps_that_share_no_case_are_told(folders, capsys, other, time):
    assert repeatability.main([*folders([SWEEPS[0], other]), "--time", time]) == 2
    captured = capsys.readouterr()
    assert f"no case has a {time} time" in captured.err and captured.out == ""
