"""Several processes on one sweep: each row once in one file; in threads, and by torchrun."""

import errno
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore

from harness import run
from harness.cases.catalogue import load_sweep
from harness.errors import GpuLost, ResultsError, UsageError
from harness.store import environment
from harness.store.environment import EnvironmentFile
from harness.sweep import hosts
from harness.sweep.hosts import Group, SharedWork, Writer
from harness.sweep.records import ResultsFolder, read
from harness.sweep.work import Choice
from tests import helpers
from tests.harness import forking

ALGORITHMS = ("onednn", "native")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(hosts, "SILENT_S", 0.5)
    monkeypatch.setattr(hosts, "POLL_S", 0.002)


@pytest.fixture
def sweep():
    """Eight cases of one small layer."""
    return load_sweep("smoke", layers=["5a_5x5red"], batches=range(1, 9))


def facts(rank):
    return {"gpu": "NVIDIA Test", "gpu_uuid": f"GPU-{rank}", "commands": [{"command": "run", "date": "today"}]}


NAMES = [environment.identifier(facts(rank)) for rank in range(3)]


class Processes:
    """The processes of a group, in threads, that share one sweep; `rows` are those of the results file at the end."""

    def __init__(self, sweep, folder, size, done=None):
        self._sweep, self._folder, self._choice = sweep, folder, Choice(done or {})
        store = PrefixStore("cuconv", HashStore())
        self.groups = [Group(rank, size, rank, store) for rank in range(size)]

    def work(self, rank, device="nvidia-test"):
        return SharedWork(self.groups[rank], self._sweep.cases, device, facts(rank))

    def measure(self, *lives):
        """Let each process live as a function of its work says; the first one's is over when all is measured."""
        with ResultsFolder(self._folder) as folder:
            environments = EnvironmentFile(self._folder)
            with Writer(self.groups[0], self._sweep, self._choice, "nvidia-test", folder, environments):
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


def each_once(frame):
    return sorted(zip(frame.batch, frame.algorithm, strict=True)) == sorted(
        (batch, name) for batch in range(1, 9) for name in ALGORITHMS
    )


@pytest.mark.parametrize("lives", [(works,), (works, works, works)], ids=["one", "three"])
def test_all_cases_are_measured_once_and_written_in_one_file(sweep, tmp_path, lives):
    assert each_once(Processes(sweep, tmp_path, len(lives)).measure(*lives))


def test_rows_of_several_gpus_name_theirs(sweep, tmp_path):
    Processes(sweep, tmp_path, 2).measure(works, works)
    stored = environment.read(tmp_path)
    assert {report["gpu_uuid"] for report in stored.values()} == {"GPU-0", "GPU-1"}


def test_what_is_done_is_not_measured_again(sweep, tmp_path):
    done = {case.key: frozenset({("cpu", "native")}) for case in sweep.cases[:3]}
    frame = Processes(sweep, tmp_path, 2, done).measure(works, works)
    assert sorted(frame.algorithm) == ["native"] * 5 + ["onednn"] * 8


def test_a_process_that_says_nothing_more_ends_the_sweep_and_the_rows_stay(sweep, tmp_path):
    drawn = threading.Event()

    def goes_silent(work):
        next(work.tasks())
        drawn.set()

    def works_then(work):
        drawn.wait(10)
        works(work)

    with pytest.raises(GpuLost, match="no process has said anything"):
        Processes(sweep, tmp_path, 2).measure(works_then, goes_silent)
    assert len(read(tmp_path / "measurements.csv")) == 7 * len(ALGORITHMS), "one case is left, for --resume"


def test_a_process_with_another_gpu_is_refused(sweep, tmp_path):
    processes = Processes(sweep, tmp_path, 2)
    processes.work(1, device="nvidia-other")
    with pytest.raises(UsageError, match="process 1 measures on nvidia-other, the first one on nvidia-test"):
        processes.measure(works)


def test_a_full_disk_ends_the_sweep_for_all(sweep, tmp_path, monkeypatch):
    def full(folder, row):
        raise ResultsError(f"cannot write ({os.strerror(errno.ENOSPC)})")

    monkeypatch.setattr(ResultsFolder, "append", full)
    with pytest.raises(ResultsError, match="cannot write"):
        Processes(sweep, tmp_path, 2).measure(works, works)


def test_torchrun_measures_one_sweep_and_resumes_it_after_a_process_was_killed(tmp_path):
    options = ["--device", "cpu", "--config", "smoke", "--layer", "5a_5x5red", "--out", str(tmp_path)]
    two = ["--nproc-per-node=2", "--standalone", "--no-python", *forking.RUN, *options]
    csv, said = tmp_path / "measurements.csv", tmp_path / "said"
    torchrun = forking.started("torch.distributed.run", *two, said=said)
    while not (csv.exists() and csv.read_text().count("\n") > 1):
        assert torchrun.is_alive()
        time.sleep(0.01)
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    torchrun.join(60)
    assert torchrun.exitcode not in (0, None), "torchrun ends the others"
    kept = len(read(csv))
    torchrun = forking.started("torch.distributed.run", *two, "--resume", said=said)
    torchrun.join(60)
    assert torchrun.exitcode == 0, said.read_text()
    frame = read(csv)
    assert 0 < kept < len(frame) == 8 and set(frame.status) == {"ok"}
    assert said.read_text().count("8 rows: 8 ok") == 1, "one process tells"


def test_torchrun_deals_out_the_gpus_of_a_host(monkeypatch):
    """More processes than GPUs share them."""
    monkeypatch.setattr(run.torch.cuda, "device_count", lambda: 2)
    assert [run._device(None, Group(rank, 5, rank, None)).index for rank in range(5)] == [0, 1, 0, 1, 0]
    with pytest.raises(UsageError, match="--device cuda:1: torchrun gives each process its GPU"):
        run._device("cuda:1", Group(0, 2, 1, None))
    monkeypatch.setattr(run.torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="without a GPU: use --device cpu"):
        run._device(None, Group(0, 2, 1, None))


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
        hosts.group()
