"""Processes that take turns on a device: one at a time measures, the others get ready, and none keeps it by dying."""

import multiprocessing
import threading
import time

import pytest

from harness.cases.catalogue import load_sweep
from harness.contenders import cpu
from harness.errors import ResultsError
from harness.isolation import Begins
from harness.sweep import turns
from harness.sweep.one_case import Task, measure_case
from harness.sweep.records import Measurement
from harness.sweep.turns import Turns
from tests.harness.sweep.test_one_case import OPTIONS


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(turns, "WORD_S", 0.01)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "lock"


def taken(turn: Turns) -> Turns:
    for _ in turn.take():
        raise AssertionError("another has the turn")
    return turn


def test_a_turn_is_one_process_s_until_it_ends(lock):
    first, waiting = taken(Turns(lock)), Turns(lock).take()
    for _ in range(3):
        next(waiting)
    first.end()
    assert list(waiting) == []
    assert next(first.take()) is None, "the second has it now"


def test_a_turn_that_a_block_holds_ends_with_it_also_by_an_error(lock):
    waiting = Turns(lock).take()
    with pytest.raises(ZeroDivisionError), Turns(lock).taken():
        next(waiting)
        raise ZeroDivisionError
    assert list(waiting) == []


def _measure_forever(lock, began):
    taken(Turns(lock))
    began.set()
    time.sleep(60)


def test_a_process_that_is_killed_gives_its_turn_back(lock):
    context = multiprocessing.get_context("fork")
    began = context.Event()
    process = context.Process(target=_measure_forever, args=(lock, began))
    process.start()
    assert began.wait(30)
    next(Turns(lock).take())
    process.kill()
    process.join()
    taken(Turns(lock))


class Slow(cpu.Contender):
    """The CPU's contender, which notes what it was asked for; it may fail to get ready."""

    def __init__(self, fails=False):
        super().__init__()
        self.asked, self._fails = [], fails

    def get_ready(self, problem):
        self.asked.append(("get_ready", problem))
        if self._fails:
            raise RuntimeError("no plan")

    def offers(self, problem, operands):
        self.asked.append(("offers", problem))
        return super().offers(problem, operands)


def test_a_contender_gets_ready_while_another_process_measures(lock):
    case, contender = load_sweep("smoke", layers=["5a_5x5red"], batches=[1]).cases[0], Slow()
    other = taken(Turns(lock))
    events = measure_case(Task(case), {"cpu": contender}, OPTIONS, Turns(lock))
    waited = [next(events) for _ in range(4)]
    assert waited == [Begins("cpu"), *[Begins()] * 3]
    assert [name for name, _ in contender.asked] == ["get_ready"]
    threading.Timer(0.05, other.end).start()
    rows = [event for event in events if isinstance(event, Measurement)]
    assert len(rows) == 4 and {row.status for row in rows} == {"ok"}
    (_, ready_for), (name, asked) = contender.asked
    assert name == "offers" and asked == ready_for
    taken(Turns(lock)), "the turn ends with the case"


def test_what_fails_to_get_ready_is_still_asked_for_its_offers():
    case = load_sweep("smoke", layers=["5a_5x5red"], batches=[1]).cases[0]
    events = measure_case(Task(case), {"cpu": Slow(fails=True)}, OPTIONS)
    assert {event.status for event in events if isinstance(event, Measurement)} == {"ok"}


def test_a_lock_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(ResultsError, match="delete it"):
        Turns(tmp_path)
