"""The loop of experiments: whatever a contender does to its process, its rows say so, and all other rows are kept."""

import json
import multiprocessing
import os
import pickle
import signal
import time

import pytest

from harness import isolation
from harness.errors import UsageError
from harness.isolation import Begins, Worker
from harness.store import environment
from tests.harness.toy_experiment import CONTENDERS, COUNTED, FAULTS, TIMED, Counted, Timed, begin, experiment
from tests.helpers import commands


@pytest.fixture
def toy(made_up_gpu, monkeypatch):
    """The folder of the results of experiments whose processes are real."""
    monkeypatch.setattr(isolation, "Worker", Worker)
    return made_up_gpu / "toy"


def statuses(folder):
    return [
        tuple(row) for row in TIMED.read(folder / TIMED.name)[["case", "contender", "status"]].itertuples(index=False)
    ]


def test_every_case_has_its_rows_and_what_they_depend_on(toy, capsys):
    assert experiment().main([]) == 0
    assert statuses(toy) == [(case, contender, "ok") for case in (1, 2, 3) for contender in ("right", "other")]
    assert COUNTED.read(toy / COUNTED.name).case.to_list() == [1, 2, 3]
    stored = json.loads((toy / "environment.json").read_text())["environments"]
    assert set(TIMED.read(toy / TIMED.name).environment) == set(stored)
    assert [facts["toys"] for facts in stored.values()] == ["1.0"] and commands(toy) == ["python -m harness toy"]
    printed = capsys.readouterr().out
    assert f"results: {toy}" in printed and "case 2 is measured" in printed


def test_cases_share_a_process_where_their_keys_are_equal(toy):
    assert experiment().main([]) == 0
    pids = TIMED.read(toy / TIMED.name).groupby("case").detail.unique()
    assert pids[1].tolist() == pids[2].tolist() != pids[3].tolist()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("segfault", "SIGSEGV"),
        ("real_time_signal", str(signal.SIGRTMIN + 1)),
        ("lose_the_gpu", "an illegal address"),
        ("bug", "ValueError: seven is not allowed"),
    ],
)
def test_what_ends_a_process_costs_its_own_row(toy, fault, why):
    assert experiment().main(["--fault", fault]) == 0
    found = statuses(toy)
    assert len(found) == 6 and [one for one in found if one[2] != "ok"] == [(2, "other", "error")]
    rows = TIMED.read(toy / TIMED.name)
    assert why in rows.detail[rows.status == "error"].item()
    assert COUNTED.read(toy / COUNTED.name).case.to_list() == [1, 2, 3]


def test_what_hangs_is_ended(toy, monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT_S", 2.0)
    assert experiment().main(["--fault", "hang", "--cases", "2"]) == 0
    assert (2, "other", "timeout") in statuses(toy) and (2, "right", "ok") in statuses(toy)


@pytest.mark.parametrize(
    ("fault", "why"), [("bug", "ValueError: seven is not allowed"), ("hang", "no answer within 2 s")]
)
def test_a_process_that_cannot_begin_ends_the_command_with_the_reason(toy, monkeypatch, capsys, fault, why):
    monkeypatch.setattr(isolation, "START_LIMIT_S", 2.0)
    assert experiment().main(["--start", fault]) == 1
    assert why in capsys.readouterr().err.splitlines()[-1]


def test_ctrl_c_ends_a_command_whose_process_could_not_be_started():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        Worker(lambda say: None, print)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_all_contenders_share_costs_the_case(toy):
    assert experiment().main(["--shared", "segfault", "--cases", "1", "3", "2"]) == 0
    assert [case for case, _, status in statuses(toy) if status == "error"] == [3, 3]
    assert (2, "right", "ok") in statuses(toy)


def test_resume_leaves_out_what_equal_code_has_measured(toy):
    def processes():
        return TIMED.read(toy / TIMED.name).groupby("case").detail.unique().map(tuple).to_dict()

    assert experiment().main(["--cases", "1"]) == 0
    first = processes()
    assert experiment().main(["--cases", "1", "2", "--resume"]) == 0
    both = processes()
    assert both[1] == first[1] and set(both) == {1, 2}
    assert experiment(facts=lambda: {"toys": "2.0"}).main(["--cases", "1", "--resume"]) == 0
    assert processes()[1] != first[1] and processes()[2] == both[2]
    with pytest.raises(SystemExit):
        experiment(groups=None).main(["--resume"])


def test_newer_rows_replace_those_of_their_keys_and_a_table_without_keys_is_replaced(toy):
    assert experiment().main([]) == 0
    assert experiment().main(["--cases", "2", "--fault", "segfault"]) == 0
    assert statuses(toy)[2:4] == [(2, "right", "ok"), (2, "other", "error")] and len(statuses(toy)) == 6
    assert COUNTED.read(toy / COUNTED.name).case.to_list() == [2]
    assert len(commands(toy)) == 2


def test_reports_that_no_row_names_any_more_are_dropped(toy):
    timed = experiment(tables=(TIMED,), begin=only_timed)
    assert timed.main([]) == 0
    before = (toy / "environment.json").read_text()
    assert timed.main(["--cases", "1"]) == 0 and len(commands(toy)) == 2
    assert before != (toy / "environment.json").read_text()
    assert set(TIMED.read(toy / TIMED.name).environment) == set(
        json.loads((toy / "environment.json").read_text())["environments"]
    )


@pytest.mark.parametrize("where", [["--fault", "bug"], ["--shared", "segfault"]])
def test_a_case_that_ends_without_rows_is_told_and_a_file_that_is_written_whole_stays(toy, capsys, where):
    counted = experiment(tables=(COUNTED,), begin=counted_where_right, failed=lambda options, case, end: ())
    assert counted.main([]) == 0
    before = (toy / COUNTED.name).read_text()
    assert counted.main(where) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "of 2:" in said or "of 3:" in said
    assert (toy / COUNTED.name).read_text() == before and len(commands(toy)) == 2


def test_a_contender_that_ends_every_process_of_a_case_is_told(toy, monkeypatch):
    accused = experiment(tables=(TIMED,), begin=always_ending)
    assert accused.main(["--cases", "1", "2"]) == 2
    assert statuses(toy) == [(1, "other", "ok"), (2, "other", "error")]


def counted_where_right(options, process):
    measure = begin(options, process)
    return lambda task: [event for event in measure(task) if type(event) is not Timed]


def always_ending(options, process):
    def measure(task):
        yield Begins("other")
        if task[0] == 2:
            FAULTS["segfault"]()
        yield Timed(task[0], "other", "ok")

    return measure


def only_counted(options, process):
    def measure(task):
        yield Counted(task[0], 7.0)
        if options.fault:
            raise KeyboardInterrupt

    return measure


def only_timed(options, process):
    measure = begin(options, process)
    return lambda task: [event for event in measure(task) if type(event).__name__ != "Counted"]


def test_an_interrupt_keeps_the_rows_of_the_cases_before(made_up_gpu, capsys):
    assert experiment().main(["--fault", "interrupt"]) == 130
    assert [case for case, _, _ in statuses(made_up_gpu / "toy")] == [1, 1]
    assert not (made_up_gpu / "toy" / COUNTED.name).exists() and len(commands(made_up_gpu / "toy")) == 1
    assert "the rows so far are kept; measure the rest" in capsys.readouterr().err


def test_an_interrupt_leaves_a_table_without_keys_and_its_report_as_they_were(made_up_gpu):
    counted = experiment(tables=(COUNTED,), begin=only_counted)
    assert counted.main([]) == 0
    files = [made_up_gpu / "toy" / name for name in (COUNTED.name, "environment.json")]
    rows, before = (file.read_text() for file in files)
    assert counted.main(["--cases", "1", "--fault", "interrupt"]) == 130
    assert files[0].read_text() == rows and set(json.loads(before)["environments"]) <= set(
        json.loads(files[1].read_text())["environments"]
    )
    assert counted.main(["--cases", "1"]) == 0
    assert COUNTED.read(files[0]).case.to_list() == [1] and "python -m harness toy --cases 1" in commands(
        files[0].parent
    )


def test_a_user_s_mistake_ends_the_command_with_its_sentence(toy, capsys):
    assert experiment().main(["--fault", "refuse"]) == 2
    assert capsys.readouterr().err.endswith("harness toy: no counter: use another GPU\n")
    assert [case for case, _, _ in statuses(toy)] == [1, 1]


def test_a_dry_run_and_a_command_without_a_gpu_measure_nothing(monkeypatch, made_up_gpu, capsys):
    assert experiment().main(["--dry-run"]) == 0 and capsys.readouterr().out == "1\n2\n3\n"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert experiment().main([]) == 2
    assert "--dry-run" in capsys.readouterr().err and not made_up_gpu.exists()


def test_another_folder_is_asked_for(toy, tmp_path):
    assert experiment().main(["--cases", "1", "--out", str(tmp_path / "mine")]) == 0
    assert len(statuses(tmp_path / "mine")) == 2 and not toy.exists()


@pytest.fixture
def two_gpus(toy, monkeypatch):
    """The folder of the results of experiments on a machine that seems to have two GPUs."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test", "gpu_uuid": str(device)})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return toy


def on_its_gpu(options, process):
    def measure(task):
        (options.out / str(task[0])).touch()
        while len(list(options.out.glob("[12]"))) < 2:  # neither case ends before both have begun
            time.sleep(0.01)
        for contender in CONTENDERS:
            yield Timed(task[0], contender, "ok", detail=os.environ["CUDA_VISIBLE_DEVICES"])

    return measure


def test_gpus_measure_cases_side_by_side_and_rows_name_theirs(two_gpus, tmp_path):
    shared = experiment(tables=(TIMED,), begin=on_its_gpu, shared=True)
    assert shared.main(["--gpus", "2", "--cases", "1", "2", "--out", str(tmp_path)]) == 0
    rows = TIMED.read(tmp_path / TIMED.name)
    reports = json.loads((tmp_path / "environment.json").read_text())["environments"]
    assert sorted(rows.detail) == ["0", "0", "1", "1"] and len(reports) == 2
    assert [reports[name]["gpu_uuid"] for name in rows.environment] == [f"cuda:{gpu}" for gpu in rows.detail]
    for case in ("1", "2"):
        (tmp_path / case).unlink()
    assert shared.main(["--gpus", "2", "--cases", "1", "2", "--out", str(tmp_path), "--resume"]) == 0
    assert not list(tmp_path.glob("[12]"))


@pytest.mark.parametrize(("fault", "code"), [("segfault", 0), ("refuse", 2)])
def test_what_ends_a_process_costs_the_other_gpu_nothing_and_a_user_s_mistake_ends_both(two_gpus, capsys, fault, code):
    assert experiment(shared=True).main(["--gpus", "2", "--fault", fault]) == code
    if code:
        assert "no counter: use another GPU" in capsys.readouterr().err
        return
    found = statuses(two_gpus)
    assert len(found) == 6 and [one for one in found if one[2] != "ok"] == [(2, "other", "error")]
    assert sorted(COUNTED.read(two_gpus / COUNTED.name).case) == [1, 2, 3]


@pytest.mark.parametrize("count", ["0", "3"])
def test_more_gpus_than_there_are_and_none_are_refused(two_gpus, capsys, count):
    assert experiment(shared=True).main(["--gpus", count]) == 2
    assert f"--gpus {count}" in capsys.readouterr().err and not two_gpus.exists()


def waits_after_the_first(options, process):
    def measure(task):
        if task[0] == 1:
            while not (options.out / "2").exists():  # the other GPU is at its case
                time.sleep(0.01)
            raise UsageError("no counter: use another GPU")
        if task[0] == 2:
            (options.out / "2").touch()
            time.sleep(1000)
        for contender in CONTENDERS:
            yield Timed(task[0], contender, "ok")

    return measure


def test_an_error_on_one_gpu_ends_what_the_other_measures_and_keeps_its_rows(two_gpus, tmp_path, capsys):
    shared = experiment(tables=(TIMED,), begin=waits_after_the_first, shared=True)
    assert shared.main(["--gpus", "2", "--cases", "3", "1", "2", "--out", str(tmp_path)]) == 2
    assert "no counter: use another GPU" in capsys.readouterr().err
    assert statuses(tmp_path) == [(3, contender, "ok") for contender in CONTENDERS]
    deadline = time.monotonic() + 30
    while multiprocessing.active_children():
        assert time.monotonic() < deadline, "a process still waits"
        time.sleep(0.01)
