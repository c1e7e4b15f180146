"""Two measurements compared: what is faster, slower, the same or unclear, and how the command ends."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness import compare
from harness.store.times import RUNS
from harness.sweep.records import read
from harness.sweep.verdicts import verdicts
from tests.helpers import row, write

OLD = [10.0 + 0.01 * i for i in range(RUNS)]


def timed(us, **options):
    """A row with these runs, in microseconds."""
    return replace(row(**options), runs_us=tuple(us))


def scaled(by, runs=OLD):
    return [by * us for us in runs]


@pytest.fixture
def folders(tmp_path):
    """Writes the rows of both measurements; returns their folders as text."""

    def make(old, new):
        return [str(write(tmp_path / when, rows).parent) for when, rows in (("old", old), ("new", new))]

    return make


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        (OLD, "same"),
        (scaled(1.015), "same"),
        (scaled(1 / 1.015), "same"),
        (scaled(1.03), "slower"),
        (scaled(1 / 1.03), "faster"),
        (scaled(1.03)[:7], "slower"),
        (scaled(1.03)[:3], "unclear"),
        ([7.0, 8.0, 9.0, 9.5, 10.5, 11.0, 12.0, 13.0, 14.0], "unclear"),
        ([*scaled(1.03)[:8], 9.0], "slower"),
    ],
)
def test_a_difference_counts_where_it_is_large_and_certain(folders, runs, verdict):
    old, new = (read(Path(folder) / "measurements.csv") for folder in folders([timed(OLD)], [timed(runs)]))
    (found,) = verdicts(old, new).verdict
    assert found == verdict


@pytest.mark.parametrize(
    ("by", "old_mhz", "new_mhz", "verdict"),
    [
        (1.10, 1980, 1800, "unclear"),  # 10% slower at a clock that is 10% lower
        (1 / 1.10, 1800, 1980, "unclear"),
        (1.20, 1980, 1800, "slower"),  # 9% are left
        (1 / 1.20, 1800, 1980, "faster"),
        (1.10, 1800, 1980, "slower"),  # although the clock is higher
        (1.10, None, 1800, "slower"),  # nobody knows
        (1.01, 1980, 1800, "same"),  # bound by memory
    ],
)
def test_a_difference_that_the_clocks_explain_is_unclear(folders, by, old_mhz, new_mhz, verdict):
    rows = replace(timed(OLD), sm_clock_mhz=old_mhz), replace(timed(scaled(by)), sm_clock_mhz=new_mhz)
    old, new = (read(Path(folder) / "measurements.csv") for folder in folders([rows[0]], [rows[1]]))
    (found,) = verdicts(old, new).verdict
    assert found == verdict


def test_a_slower_case_is_told_and_the_exit_code_is_1(folders, capsys):
    new = [timed(scaled(1.1)), timed(scaled(0.8), batch=8), timed(OLD, batch=32)]
    old = [timed(OLD), timed(OLD, batch=8), timed(OLD, batch=16)]
    assert compare.main(folders(old, new)) == 1
    printed = capsys.readouterr().out
    slower, faster = printed.index("\nslower:\n"), printed.index("\nfaster:\n")
    assert slower < printed.rindex("1.100x") < faster < printed.rindex("0.800x")
    assert "2 rows compared, 1 only old, 1 only new" in printed
    all_row = next(line for line in printed.splitlines() if line.startswith("| all"))
    assert [cell.strip() for cell in all_row.split("|")[2:6]] == ["1", "0", "1", "0"]


def test_nothing_slower_is_a_success(folders, capsys):
    assert compare.main(folders([timed(OLD)], [timed(scaled(0.5))])) == 0
    assert "slower:" not in capsys.readouterr().out


def test_the_threshold_is_the_users(folders):
    arguments = folders([timed(OLD)], [timed(scaled(1.03))])
    assert compare.main([*arguments, "--threshold", "0.05"]) == 0
    assert compare.main([*arguments, "--threshold", "0.01"]) == 1


def test_only_the_rows_that_are_asked_for_count(folders, capsys):
    old = [timed(OLD), timed(OLD, algorithm="two_stage"), timed(OLD, algorithm="gemm", provider="cudnn")]
    new = [timed(OLD), timed(scaled(2), algorithm="two_stage"), timed(scaled(2), algorithm="gemm", provider="cudnn")]
    arguments = folders(old, new)
    assert compare.main([*arguments, "--algorithm", "auto"]) == 0
    assert compare.main([*arguments, "--provider", "cudnn"]) == 1
    assert "cuDNN gemm" in capsys.readouterr().out
    assert compare.main([*arguments, "--precision", "tf32"]) == 2


def test_the_fastest_algorithms_are_compared_case_by_case(folders, capsys):
    def cudnn(us, **options):
        return timed(us, provider="cudnn", **options)

    old = [cudnn(OLD, algorithm="gemm"), cudnn(scaled(2), algorithm="fft"), cudnn(OLD, algorithm="gemm", batch=8)]
    new = [cudnn(scaled(3), algorithm="gemm"), cudnn(scaled(0.5), algorithm="fft"), row("auto", 1.0, batch=8)]
    arguments = [*folders(old, new), "--provider", "cudnn"]
    assert compare.main([*arguments, "--fastest"]) == 0
    printed = capsys.readouterr().out
    assert "cuDNN gemm, then cuDNN fft" in printed and "0.500x" in printed and "3.000x" not in printed
    assert "1 rows compared, 1 only old, 0 only new" in printed
    assert compare.main(arguments) == 1


def test_a_row_that_has_a_time_no_more_is_broken(folders, capsys):
    both = folders([timed(OLD), timed(OLD, m=48)], [timed(OLD), row(m=48, status="incorrect", detail="error 0.2")])
    assert compare.main(both) == 1
    told = "broken: 1 rows are ok in OLD and not in NEW (1 incorrect), the first: cuConv auto on 7-1-1-48-832"
    assert f"{told}: error 0.2" in capsys.readouterr().out
    assert compare.main(both[::-1]) == 0, "what is mended is no loss"


def test_where_both_were_measured_is_told(folders, capsys):
    both = folders([timed(OLD)], [timed(OLD)])
    report = {"gpu": "NVIDIA Test", "torch": "2.11.0+cu130", "commit": "0123456789", "commands": []}
    (Path(both[1]) / "environment.json").write_text(json.dumps({"environments": {"": report}}))
    assert compare.main(both) == 0
    assert capsys.readouterr().out.startswith(f"old: {both[0]}\nnew: NVIDIA Test, torch 2.11.0, commit 01234567\n")
    renamed = (Path(both[1]) / "measurements.csv").rename(Path(both[1]) / "renamed.csv")
    assert compare.main([both[0], str(renamed)]) == 0
    assert "\nnew: NVIDIA Test, torch 2.11.0, commit 01234567\n" in capsys.readouterr().out


def test_a_row_without_a_time_is_not_compared(folders, capsys):
    old = [timed(OLD), row(status="error", batch=8)]
    new = [timed(OLD), timed(OLD, batch=8)]
    assert compare.main(folders(old, new)) == 0
    assert "1 rows compared, 0 only old, 1 only new" in capsys.readouterr().out


def commit(folder):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "old"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_a_measurement_of_another_revision(tmp_path, monkeypatch, folders, capsys):
    old, new = folders([timed(OLD)], [timed(scaled(1.2))])
    commit(old)
    monkeypatch.setattr(compare, "ROOT", old)
    assert compare.main(["HEAD:measurements.csv", new]) == 1
    assert "1.200x" in capsys.readouterr().out
    assert compare.main(["HEAD:nowhere", new]) == 2
    assert "HEAD:nowhere: git has no such file" in capsys.readouterr().err


def test_a_compressed_measurement(monkeypatch, folders, capsys):
    old, new = folders([timed(OLD)], [timed(scaled(1.2))])
    subprocess.run(["gzip", Path(old) / "measurements.csv"], check=True)
    commit(old)
    monkeypatch.setattr(compare, "ROOT", old)
    for named in (old, f"{old}/measurements.csv.gz", "HEAD:.", "HEAD:measurements.csv", "HEAD:measurements.csv.gz"):
        assert compare.main([named, new]) == 1
        assert "1.200x" in capsys.readouterr().out
    renamed = (Path(old) / "measurements.csv.gz").rename(Path(old) / "renamed.csv.gz")
    assert compare.main([str(renamed), new]) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere", "."], "nowhere does not exist: name a folder"),
        ([".", "."], "does not exist: measure first"),
        ([".", ".", "--threshold", "2"], "--threshold 2: must be at least 0 and less than 1"),
        ([".", ".", "--provider", "magic"], "--provider magic: must be one of cuconv"),
        ([".", ".", "--algorithm", "magic"], "--algorithm magic: the algorithms of cuconv are auto, "),
        (
            [".", ".", "--algorithm", "magic", "--provider", "cudnn_engine"],
            "--algorithm magic: the algorithms of cudnn_engine are eng0, eng1, ...",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, why):
    monkeypatch.chdir(tmp_path)
    assert compare.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and why in message


def test_another_time_is_compared_by_its_own_runs(folders, capsys):
    cold = [replace(timed(OLD), cold_runs_us=tuple(runs)) for runs in (OLD, scaled(1.5))]
    both = folders([cold[0]], [cold[1]])
    assert compare.main(both) == 0
    assert compare.main([*both, "--time", "cold"]) == 1
    capsys.readouterr()
    assert compare.main([*both, "--time", "separated"]) == 2
    assert "has 0 separated times that fit the options" in capsys.readouterr().err


def test_a_revision_is_no_option_of_git(tmp_path, monkeypatch, capsys):
    old = "--output=victim"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert compare.main(["--", f"{old}:measurements.csv", f"{old}:measurements.csv"]) == 2
    said = capsys.readouterr().err
    assert old in said and said.count("\n") == 1
    assert not any(path.name.startswith("victim") for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["fifo.csv", "device.csv", "measurements.csv", "n" * 300])
def test_what_is_no_regular_file_is_told(tmp_path, capsys, kind):
    path = tmp_path / kind
    if kind == "device.csv":
        path.symlink_to("/dev/zero")
    elif len(kind) < 256:
        os.mkfifo(path)
    assert compare.main([str(path), str(path)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and said.count("\n") == 1
