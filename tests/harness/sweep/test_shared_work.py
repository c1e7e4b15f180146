"""Several processes on one sweep: each row once in one file, whoever leaves or dies; in threads, and by torchrun."""

import errno
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from torch.distributed import HashStore, PrefixStore

from harness import run
from harness.cases.catalogue import load_sweep
from harness.errors import GpuLost, ResultsError, UsageError
from harness.store import environment
from harness.store.environment import EnvironmentFile
from harness.sweep import clerk, shared_work
from harness.sweep.clerk import Clerk
from harness.sweep.records import ResultsFolder, read
from harness.sweep.shared_work import Group, SharedWork
from harness.sweep.work import Choice
from tests import helpers

ALGORITHMS = ("onednn", "native")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(clerk, "DEAD_S", 0.4)
    monkeypatch.setattr(clerk, "BEAT_S", 0.05)
    monkeypatch.setattr(shared_work, "BEAT_S", 0.05)
    monkeypatch.setattr(shared_work, "POLL_S", 0.002)
    monkeypatch.setattr(clerk, "POLL_S", 0.002)


@pytest.fixture
def sweep():
    """Eight cases of one small layer."""
    return load_sweep("smoke", layers=["5a_5x5red"], batches=range(1, 9))


def facts(rank):
    return {"gpu": "NVIDIA Test", "gpu_uuid": f"GPU-{rank}", "commands": [{"command": "run", "date": "today"}]}


NAMES = [environment.identifier(facts(rank)) for rank in range(3)]


class Processes:
    """The processes of a group, in threads, that share one sweep; `rows` are those of the results file at the end."""

    def __init__(self, sweep, folder, size, done=None, other_times=False):
        self._sweep, self._folder, self._choice = sweep, folder, Choice(done or {}, other_times=other_times)
        store = PrefixStore("cuconv", HashStore())
        self.groups = [Group(rank, size, rank, store) for rank in range(size)]

    def work(self, rank, device="nvidia-test"):
        return SharedWork(self.groups[rank], self._sweep.cases, device, facts(rank))

    def measure(self, *lives):
        """Let each process live as a function of its work says; the first one's is over when all is measured."""
        with ResultsFolder(self._folder) as folder:
            environments = EnvironmentFile(self._folder)
            with Clerk(self.groups[0], self._sweep, self._choice, "nvidia-test", folder, environments):
                works = [self.work(rank) for rank in range(len(lives))]
                threads = [threading.Thread(target=life, args=(work,)) for life, work in zip(lives, works, strict=True)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        return read(self._folder / "measurements.csv")


def rows_of(task, rank=0):
    """A made-up row for each algorithm that a task leaves to do."""
    return [
        helpers.row(name, 1.0 + rank, provider="cpu", batch=task.case.batch, environment=NAMES[rank])
        for name in ALGORITHMS
        if ("cpu", name) not in task.done
    ]  # fmt: skip


def works(work):
    """Measure whatever comes."""
    for task in work.tasks():
        for row in rows_of(task):
            work.append(row)


def dies_after_a_row(work):
    for task in work.tasks():
        work.append(rows_of(task, rank=1)[0])
        work._alive = False
        return


def dies_before_it_takes(work):
    """Draw a position, and die before saying so."""
    work._store.add("head", 1)
    work._alive = False


def leaves(work):
    for _ in work.tasks():
        work.leave()
        return


def each_once(frame):
    return sorted(zip(frame.batch, frame.algorithm, strict=True)) == sorted(
        (batch, name) for batch in range(1, 9) for name in ALGORITHMS
    )


@pytest.mark.parametrize("lives", [(works,), (works, works, works)], ids=["one", "three"])
def test_all_cases_are_measured_once_and_written_in_one_file(sweep, tmp_path, lives):
    assert each_once(Processes(sweep, tmp_path, len(lives)).measure(*lives))


@pytest.mark.parametrize("end", [dies_after_a_row, dies_before_it_takes, leaves])
def test_the_case_of_a_process_that_is_gone_is_measured_by_another(sweep, tmp_path, end):
    gate = threading.Event()

    def waits_for_the_other(work):
        gate.wait(10)
        works(work)

    def ends(work):
        end(work)
        gate.set()

    frame = Processes(sweep, tmp_path, 2).measure(waits_for_the_other, ends)
    assert each_once(frame)
    if end is dies_after_a_row:
        assert len(frame[frame.mean_us == 2.0]) == 1, "the row that came in before stays"
        assert set(frame.environment) == set(NAMES[:2])


def test_a_row_that_lacks_a_time_when_its_process_dies_is_measured_again(sweep, tmp_path):
    gate = threading.Event()
    asked = []

    def dies_in_the_second_pass(work):
        for task in work.tasks():
            rows = [helpers.row(name, 2.0, batch=task.case.batch) for name in ("auto", "two_stage", "fp16x3")]
            for row in [*rows, replace(rows[0], separated_runs_us=(3.0,), cold_runs_us=(4.0,))]:
                work.append(row)
            work._alive = False
            gate.set()
            return

    def takes_over(work):
        gate.wait(10)
        for task in work.tasks():
            asked.append(task.done)

    frame = Processes(sweep, tmp_path, 2, other_times=True).measure(takes_over, dies_in_the_second_pass)
    assert asked.count(frozenset()) == 7 and frozenset({("cuconv", "auto"), ("cuconv", "fp16x3")}) in asked
    auto = frame[frame.algorithm == "auto"].iloc[0]
    assert (auto.mean_us, auto.separated_us, auto.cold_us) == (2.0, 3.0, 4.0)


def test_rows_of_several_gpus_name_theirs(sweep, tmp_path):
    Processes(sweep, tmp_path, 2).measure(works, works)
    stored = environment.read(tmp_path)
    assert {report["gpu_uuid"] for report in stored.values()} == {"GPU-0", "GPU-1"}


def test_what_is_done_is_not_measured_again(sweep, tmp_path):
    done = {case.key: frozenset({("cpu", "native")}) for case in sweep.cases[:3]}
    frame = Processes(sweep, tmp_path, 2, done).measure(works, works)
    assert sorted(frame.algorithm) == ["native"] * 5 + ["onednn"] * 8


def test_where_all_leave_the_gpu_is_lost(sweep, tmp_path):
    with pytest.raises(GpuLost, match="no process is left that measures"):
        Processes(sweep, tmp_path, 2).measure(leaves, leaves)


def test_a_process_with_another_gpu_is_refused(sweep, tmp_path):
    processes = Processes(sweep, tmp_path, 2)
    processes.work(1, device="nvidia-other").leave()
    with pytest.raises(UsageError, match="process 1 measures on nvidia-other, the first one on nvidia-test"):
        processes.measure(works)


def test_a_full_disk_ends_the_sweep_for_all(sweep, tmp_path, monkeypatch):
    def full(folder, row):
        raise ResultsError(f"cannot write ({os.strerror(errno.ENOSPC)})")

    monkeypatch.setattr(ResultsFolder, "append", full)
    with pytest.raises(ResultsError, match="cannot write"):
        Processes(sweep, tmp_path, 2).measure(works, works)


def test_torchrun_measures_one_sweep_by_two_processes(tmp_path):
    alone = ["-m", "harness.run", "--device", "cpu", "--config", "smoke", "--layer", "5a_5x5red", "--runs", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *alone]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    frame = read(tmp_path / "measurements.csv")
    assert len(frame) == 8 and set(frame.status) == {"ok"}
    assert done.stdout.count("8 rows: 8 ok") == 1, "one process tells"


def test_torchrun_with_more_processes_than_gpus_is_told_the_remedy():
    one = Group(0, 2, 99, None)
    with pytest.raises(UsageError, match=r"process 99 of this host, which has \d+ GPUs: use --nproc-per-node=gpu"):
        run._device(None, one)
    with pytest.raises(UsageError, match="--device cuda:1: torchrun gives each process its own GPU"):
        run._device("cuda:1", one)


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in TORCHRUN),
        *(("RANK", value) for value in ("one", "-1", "", "1", "1.0", "9" * 400)),
        ("WORLD_SIZE", "0"),
        ("LOCAL_RANK", "7"),
        ("MASTER_PORT", "0"),
    ],
)
def test_variables_that_torchrun_did_not_set_are_told(monkeypatch, name, value):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for variable, fine in (TORCHRUN | {name: value}).items():
        monkeypatch.delenv(variable, raising=False) if fine is None else monkeypatch.setenv(variable, fine)
    told = re.escape(f"{name}={(value or '')[:60]}")
    with pytest.raises(UsageError, match=f"{told}.*start the command with torchrun, or 'unset TORCHELASTIC_RUN_ID'"):
        shared_work.group()
