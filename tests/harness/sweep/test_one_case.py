"""A case of a sweep on the CPU: a row for everything, errors as rows, verification that catches wrong results."""

from dataclasses import replace

import pytest
import torch

from harness.cases.catalogue import load_sweep
from harness.contenders.base import NoMemory, NotRunnable, Offer, Operands, Prepared
from harness.contenders.registry import PROVIDERS
from harness.isolation import Begins
from harness.stopwatch import timing
from harness.stopwatch.verify import TOLERANCE, Verifier
from harness.sweep import one_case as sweep
from harness.sweep.one_case import Offered, Task
from harness.sweep.records import Measurement

CPU = torch.device("cpu")
OPTIONS = sweep.Options(
    device=CPU, providers=("cpu",), algorithms=None, runs=2, seed=0, workspace_limit=2**30, environment="test"
)


def rows_of(task, contender, options=OPTIONS):
    """The rows of a case, measured in this process."""
    events = sweep.measure_case(task, {"cpu": contender}, options)
    return [event for event in events if isinstance(event, Measurement)]


@pytest.fixture
def tiny():
    """Two cases of one small layer."""
    chosen = load_sweep("smoke", layers=["5a_5x5red"], batches=[1, 3])
    return replace(chosen, runs=2)


class Faulty:
    """A contender with an algorithm for each way to go wrong, and one that is right."""

    def offers(self, problem, operands):
        right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)

        def one_wrong_image():
            out = right.clone()
            out[-2 if len(out) > 1 else -1] *= 1.1
            return out

        def wrong_once_timed():
            calls.append(1)
            return right.clone() if len(calls) < 3 else right * 1.1

        def raises(error):
            def call():
                raise error

            return call

        calls = []
        results = {
            "right": lambda: right.clone(),
            "wrong_image": one_wrong_image,
            "never_written": lambda: operands.output,
            "exchanged": lambda: right.flip(0) if len(right) > 1 else right * 2,
            "wrong_once_timed": wrong_once_timed,
            "refuses": raises(NotRunnable("unsupported", "no kernel for it")),
            "breaks": raises(ZeroDivisionError("division by\nzero")),
            "no_memory": raises(MemoryError("no memory left")),
        }
        return [Offer("cpu", name, lambda call=call: Prepared(call, 0)) for name, call in results.items()]


def test_everything_that_goes_wrong_is_a_row(tiny):
    case = tiny.cases[1]
    rows = {row.algorithm: row for row in rows_of(Task(case), Faulty())}
    statuses = {name: row.status for name, row in rows.items()}
    assert statuses == {
        "right": "ok",
        "wrong_image": "incorrect",
        "never_written": "incorrect",
        "exchanged": "incorrect",
        "wrong_once_timed": "incorrect",
        "refuses": "unsupported",
        "breaks": "error",
        "no_memory": "error",
    }
    assert rows["breaks"].detail == "ZeroDivisionError: division by"
    assert "after timing" in rows["wrong_once_timed"].detail
    assert len(rows["right"].runs_us) == 2 and rows["right"].rel_l2_error < 1e-6


class Several:
    """An algorithm with three ways: one refuses, one is wrong, one is right."""

    def offers(self, problem, operands):
        right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)

        def refuses():
            raise NotRunnable("unsupported", "no kernel for it")

        wrong, slow = (lambda: Prepared(lambda: right * 2, 0, "wrong")), (lambda: Prepared(right.clone, 0, "right"))
        return [
            Offer("cpu", "several", refuses, others=(wrong, slow)),
            Offer("cpu", "none", refuses, others=(refuses,)),
        ]


def test_an_offer_of_several_ways_is_measured_in_one_that_is_right(tiny):
    several, none = sorted(rows_of(Task(tiny.cases[1]), Several()), key=lambda row: row.algorithm, reverse=True)
    assert (several.algorithm, several.status, several.detail) == ("several", "ok", "right")
    assert several.rel_l2_error < 1e-6
    assert (none.algorithm, none.status, none.detail) == ("none", "unsupported", "no kernel for it")


def test_a_contender_that_cannot_even_offer_is_a_row(tiny):
    class Broken:
        def offers(self, problem, operands):
            raise RuntimeError("no graph")

    rows = rows_of(Task(tiny.cases[0]), Broken())
    assert {row.algorithm for row in rows} == {"two_stage", "onednn", "native", "fft"}
    assert all(row.status == "error" and "no graph" in row.detail for row in rows)


class Large:
    """An algorithm for each way of a workspace to be large; the limit is 2**30 bytes."""

    def offers(self, problem, operands):
        right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)

        def lacks(size):
            raise NoMemory(size)

        def breaks():
            raise torch.OutOfMemoryError("no memory left")

        prepares = {
            "within": lambda: Prepared(right.clone, 2**30, "a plan"),
            "over": lambda: Prepared(right.clone, 2**30 + 1, "a plan"),
            "wrong": lambda: Prepared(lambda: right * 2, 2**30 + 1),
            "over_the_memory": lambda: Prepared(right.clone, 2**50),
            "no_room_over": lambda: lacks(2**31),
            "no_room_within": lambda: lacks(2**20),
            "breaks_over": lambda: Prepared(breaks, 2**31),
            "breaks_within": lambda: Prepared(breaks, 2**20),
        }
        return [Offer("cpu", name, prepare) for name, prepare in prepares.items()]


def test_a_workspace_over_the_limit_is_measured_where_the_memory_suffices(tiny, monkeypatch):
    freed = []
    monkeypatch.setattr(sweep, "_release_memory", lambda: freed.append(True))
    rows = {row.algorithm: row for row in rows_of(Task(tiny.cases[1]), Large())}
    told = "needs {} bytes of workspace, the limit is 1073741824"
    assert {name: (row.status, len(row.runs_us), row.workspace_bytes, row.detail) for name, row in rows.items()} == {
        "within": ("ok", 2, 2**30, "a plan"),
        "over": ("workspace_exceeded", 2, 2**30 + 1, told.format(2**30 + 1)),
        "wrong": ("incorrect", 0, 2**30 + 1, "relative L2 error 1, more than 0.01"),
        "over_the_memory": ("workspace_exceeded", 0, None, told.format(2**50)),
        "no_room_over": ("workspace_exceeded", 0, None, told.format(2**31)),
        "no_room_within": ("error", 0, None, "the device has no 1048576 bytes left for the workspace"),
        "breaks_over": ("workspace_exceeded", 0, None, told.format(2**31)),
        "breaks_within": ("error", 0, None, "OutOfMemoryError: no memory left"),
    }
    assert rows["over"].rel_l2_error < 1e-6 and rows["over"].timing == "loop"
    assert len(freed) == 5, "after each row over the limit, and at the end of the case"


HUGE = dict(h=10**9, w=10**9, c=3, m=4, k=3, pad=1)
LARGE = dict(h=300_000, w=300_000, c=3, m=4, k=3, pad=1)  # more than any machine's memory


@pytest.mark.parametrize("sizes", [HUGE, LARGE], ids=["beyond 64 bits", "beyond memory"])
def test_an_impossible_layer_costs_one_row_of_each_algorithm(tiny, sizes):
    good = tiny.cases[0]
    rows = rows_of(Task(replace(good, layer=replace(good.layer, **sizes))), Faulty())
    assert {row.algorithm for row in rows} == set(PROVIDERS["cpu"].algorithms)
    assert all(row.status == "error" and "the case's tensors cannot be made" in row.detail for row in rows)


def test_a_slow_algorithm_times_out(tiny, monkeypatch):
    monkeypatch.setattr(timing, "LIMIT_S", 0.0)
    rows = rows_of(Task(tiny.cases[0]), Faulty())
    right = next(row for row in rows if row.algorithm == "right")
    assert right.status == "timeout" and "exceed the limit" in right.detail


def test_rows_that_are_done_are_not_measured_again(tiny):
    measured = {row.algorithm for row in rows_of(Task(tiny.cases[0], done=frozenset({("cpu", "right")})), Faulty())}
    assert "right" not in measured and "wrong_image" in measured


def test_what_is_broken_has_a_row_and_is_not_tried(tiny):
    one = Task(tiny.cases[0], broken={("cpu", "right"): "not tried: it ended 2 processes"})
    rows = {row.algorithm: row for row in rows_of(one, Faulty())}
    assert (rows["right"].status, rows["right"].detail) == ("error", "not tried: it ended 2 processes")
    assert rows["wrong_image"].status == "incorrect"
    everything = Task(tiny.cases[0], broken={("cpu", ""): "not tried"})
    assert {(row.status, row.detail) for row in rows_of(everything, Faulty())} == {("error", "not tried")}


def test_what_may_break_is_said_before(tiny):
    events = list(sweep.measure_case(Task(tiny.cases[0]), {"cpu": Faulty()}, OPTIONS))
    assert events[:4] == [Begins("cpu"), Begins(), Begins("cpu"), Offered(8)]
    for begins, row in zip(events[4::2], events[5::2], strict=True):
        assert begins == Begins(row.provider, row.algorithm)


@pytest.mark.parametrize("offers", [True, False])
def test_rows_carry_the_precision_of_the_sweep(tiny, offers):
    class InTf32(Faulty):
        def offers(self, *arguments):
            if not offers:
                raise RuntimeError("no graph")
            return [replace(offer, precision="tf32") for offer in super().offers(*arguments)]

    options = replace(OPTIONS, precision="tf32")
    rows = rows_of(Task(tiny.cases[0]), InTf32(), options)
    assert rows and {row.precision for row in rows} == {"tf32"}


def test_the_order_of_algorithms_is_the_seeds(tiny):
    def order(seed):
        options = replace(OPTIONS, seed=seed)
        return [row.algorithm for row in rows_of(Task(tiny.cases[0]), Faulty(), options)]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("epilogue", ["bias_relu", "bias_add_relu"])
def test_verifier_sees_what_a_call_with_an_epilogue_lacks(epilogue):
    case = load_sweep("smoke", layers=["5a_5x5red"], batches=[6]).cases[0]
    problem, generator = case.problem, torch.Generator().manual_seed(0)
    operands = Operands.random(problem, generator, epilogue)
    verifier = Verifier(problem, operands.input, operands.weight, generator, operands.bias, operands.residual)
    sums = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)
    biased = sums + operands.bias[:, None, None]
    whole = biased if operands.residual is None else biased + operands.residual
    right = whole.relu()
    assert verifier.errors(right).rel_l2 < 1e-6
    for wrong in (whole, sums.relu(), right.flip(0), *([biased.relu()] if whole is not biased else [])):
        assert not verifier.errors(wrong).acceptable
    for image in range(6):
        wrong = right.clone()
        wrong[image, 3, 2, 1] += 100 * right.std()
        assert not verifier.errors(wrong).acceptable, image


def test_verifier_sees_one_wrong_element_in_any_image():
    case = load_sweep("smoke", layers=["5a_5x5red"], batches=[8]).cases[0]
    problem = case.problem
    generator = torch.Generator().manual_seed(0)
    operands = Operands.random(problem, generator)
    verifier = Verifier(problem, operands.input, operands.weight, generator)
    right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)
    assert verifier.errors(right).rel_l2 < 1e-6
    for image in range(8):
        wrong = right.clone()
        wrong[image, 3, 2, 1] += 100 * right.std()
        assert verifier.errors(wrong).rel_l2 > TOLERANCE, image
        wrong[image, 3, 2, 1] = torch.nan
        assert not verifier.errors(wrong).acceptable, image
