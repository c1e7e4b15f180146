"""The choice among the ways of an offer: fast, right, and within the limit of workspace where one is."""

from types import SimpleNamespace

import pytest
import torch

from harness.contenders.base import NotRunnable, Offer, Prepared
from harness.stopwatch import timing
from harness.sweep.ways import settled

LIMIT, CPU = 100, torch.device("cpu")


@pytest.fixture
def choose(monkeypatch):
    """Makes an offer of ways (name, us, bytes of workspace); returns the names of its ways once it is settled."""
    monkeypatch.setattr(timing, "measure", lambda call, runs, device: SimpleNamespace(runs_us=(call(),) * runs))

    def chosen(*ways, right=lambda prepared: True, told=None):
        first, *others = (
            way if callable(way) else lambda way=way: Prepared(lambda: way[1], way[2], way[0]) for way in ways
        )
        offer = Offer("cudnn_engine", "eng3", first, "tf32", tuple(others))
        one = settled(offer, LIMIT, CPU, right, (told if told is not None else []).append)
        assert not one.others and (one.provider, one.algorithm, one.precision) == ("cudnn_engine", "eng3", "tf32")
        return one.prepare().detail

    return chosen


def fails(error):
    def way():
        raise error

    return way


def test_the_fastest_way_counts(choose):
    assert choose(("slow", 9.0, 0), ("fast", 2.0, 0), ("medium", 5.0, 0)) == "fast"


def test_a_way_within_the_limit_is_better_than_a_faster_one_over_it(choose):
    assert choose(("over", 1.0, LIMIT + 1), ("slow", 9.0, 0), ("within", 5.0, LIMIT)) == "within"
    assert choose(("slow", 9.0, LIMIT + 1), ("fast", 5.0, LIMIT + 1)) == "fast"


def test_a_wrong_way_is_passed_over(choose):
    ways = ("wrong", 1.0, 0), ("right", 5.0, 0), ("slow", 9.0, 0)
    assert choose(*ways, right=lambda prepared: prepared.detail != "wrong") == "right"
    assert choose(*ways, right=lambda prepared: False) == "wrong", "where none is right, the row says so"


def test_ways_that_cannot_run_are_left_out_and_their_errors_told(choose):
    refuses, slow, breaks = fails(NotRunnable("unsupported", "no")), fails(timing.TooSlow("slow")), ZeroDivisionError()
    late = Prepared(refuses, 0, "it refuses when it is called")
    told = []
    assert choose(refuses, slow, fails(breaks), lambda: late, ("one", 3.0, 0), told=told) == "one"
    assert told == [breaks]


def test_where_no_way_runs_the_first_says_why(choose):
    with pytest.raises(NotRunnable, match="the first"):
        choose(fails(NotRunnable("unsupported", "the first")), fails(NotRunnable("unsupported", "the second")))


def test_an_offer_of_one_way_is_neither_called_nor_timed():
    offer = Offer("cudnn", "gemm", fails(AssertionError("prepared")))
    assert settled(offer, LIMIT, CPU, fails(AssertionError()), fails(AssertionError())) is offer
