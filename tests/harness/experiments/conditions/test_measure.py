"""Conditions on a CPU: the sample of cases, the rotation of operands, and the rows of toy contenders."""

import math

import pytest
import torch

from cuconv import ConvProblem, reference
from harness.cases.catalogue import load_sweep
from harness.contenders import cpu
from harness.contenders.base import Contender, Offer, Operands, Prepared
from harness.experiments.conditions import measure as conditions
from harness.experiments.conditions.measure import BATCHES, MOST_COPIES, RIVALS, Rotation, measure, sample
from harness.experiments.conditions.rows import CONDITION_TIMES, CONDITIONS, ROTATED, SUSTAINED, ConditionTime
from harness.isolation import Begins, Lacks
from harness.stopwatch import timing
from harness.sweep.one_case import Options
from tests.helpers import commands

PROBLEM = ConvProblem(2, 3, 5, 4, 6, 3, 3, 1, 1)
CPU = torch.device("cpu")
CASE = load_sweep("smoke", layers=["5a_5x5red"], batches=[2]).cases[0]
OPTIONS = Options(CPU, ("cuconv", "cpu"), None, 3, 0, 1 << 30, "")


def operands():
    return Operands.random(PROBLEM, torch.Generator().manual_seed(0))


def copy_bytes(those):
    return sum(tensor.nbytes for tensor in (those.input, those.weight, those.output))


def test_the_sample_has_the_layers_of_most_flop_and_others_of_every_part_of_the_catalogue():
    everything, chosen = load_sweep("paper", batches=[1]), sample()
    layers = [case.layer for case in everything.cases]
    found = list(dict.fromkeys(case.layer for case in chosen.cases))
    assert [(case.layer, case.batch) for case in chosen.cases] == [(one, batch) for one in found for batch in BATCHES]
    assert len(chosen.cases) == 24 and (chosen.runs, chosen.workspace_limit) == (9, everything.workspace_limit)
    flop = {case.layer: case.problem.flop for case in everything.cases}
    assert [flop[layer] for layer in found[:3]] == sorted(flop.values())[:-4:-1]
    places = [layers.index(layer) for layer in found[3:]]
    gaps = [later - earlier for earlier, later in zip([-9, *places], [*places, len(layers) + 8], strict=True)]
    assert len(places) == 5 and all(14 <= gap <= 21 for gap in gaps)


def test_the_rivals_are_all_of_cudnn():
    assert RIVALS == ("cudnn", "cudnn_engine", "torch")


@pytest.mark.parametrize(("least", "copies"), [(0, 2), (2.0, 2), (2.01, 3), (7, 7), (63.5, 64), (1000, MOST_COPIES)])
def test_copies_take_the_bytes_that_are_asked_for_within_limits(least, copies):
    mine = operands()
    rotation = Rotation(mine, math.ceil(least * copy_bytes(mine)))
    assert len(rotation.outputs) == copies


def test_each_call_of_a_round_is_on_other_memory_with_equal_values_and_the_last_on_the_operands_own():
    mine, seen = operands(), []
    own = [tensor.data_ptr() for tensor in (mine.input, mine.weight, mine.output)]
    values = mine.input.clone(), mine.weight.clone()

    def call():
        assert torch.equal(mine.input, values[0]) and torch.equal(mine.weight, values[1])
        seen.append([tensor.data_ptr() for tensor in (mine.input, mine.weight, mine.output)])
        mine.output.fill_(len(seen))
        return mine.output

    rotation = Rotation(mine, 5 * copy_bytes(mine))
    for rounds in (1, 2):
        assert rotation.round(call) is mine.output
        assert [float(output.mean()) for output in rotation.outputs] == [5 * rounds - 4 + i for i in range(5)]
    assert seen[:5] == seen[5:] and seen[4] == own
    for addresses in zip(*seen[:5], strict=True):
        assert len(set(addresses)) == 5
    assert all(tensor.is_contiguous() and tensor.shape == shape for tensor, shape in [
        (mine.input, PROBLEM.input_shape), (mine.weight, PROBLEM.weight_shape), (mine.output, PROBLEM.output_shape),
    ])  # fmt: skip


def test_a_prepared_call_computes_on_the_memory_of_each_copy():
    mine = operands()
    rotation, found = Rotation(mine, 3 * copy_bytes(mine)), []
    generator = torch.Generator().manual_seed(1)
    call = cpu.Contender().offers(PROBLEM, mine)[0].prepare().call

    def checked():
        mine.input.normal_(generator=generator)
        found.append(torch.allclose(call().double(), convolved(mine), atol=1e-4))
        return mine.output

    rotation.round(checked)
    assert found == [True] * 3


def convolved(those):
    return reference.conv2d(those.input, those.weight, **PROBLEM.geometry)


class Clock:
    """The time module of the timer: pauses of toys move it, and a little each look at it."""

    def __init__(self):
        self.seconds = 0.0

    def perf_counter(self):
        self.seconds += 1e-4
        return self.seconds


CLOCK = Clock()


class Toy(Contender):
    """Algorithms that write into the case's output: right ones, each after a pause, and wrong ones."""

    def __init__(self, provider, pauses, spoil=lambda output: None):
        super().__init__()
        self.provider, self.pauses, self.spoil, self.calls = provider, pauses, spoil, 0

    def offers(self, problem, operands):
        return [
            Offer(self.provider, name, lambda pause=pause: Prepared(self.call(problem, operands, pause), 0))
            for name, pause in self.pauses.items()
        ]

    def call(self, problem, operands, pause):
        def call():
            self.calls += 1
            CLOCK.seconds += pause
            operands.output.copy_(reference.conv2d(operands.input, operands.weight, **problem.geometry))
            self.spoil(operands.output)
            return operands.output

        return call


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Let a load last a twentieth of a second, of a clock that knows no other work than the toys' pauses."""
    monkeypatch.setattr(timing, "time", CLOCK)
    monkeypatch.setattr(conditions, "LOAD_S", 0.05)
    monkeypatch.setattr(timing, "CPU_FILL_US", 1.0)


def rows(entered, broken=(), case=CASE):
    found = list(measure(case, entered, OPTIONS, 1, broken))
    return [one for one in found if not isinstance(one, Begins)], [one for one in found if isinstance(one, Begins)]


def test_auto_and_its_fastest_rival_have_a_row_under_each_condition():
    ours = Toy("cuconv", {"auto": 0.02, "two_stage": 0.0})
    theirs = Toy("cpu", {"slow": 0.06, "fast": 0.03})
    found, begun = rows({"cuconv": ours, "cpu": theirs})
    assert [(row.provider, row.algorithm, row.condition) for row in found] == [
        (*name, condition) for condition in CONDITIONS for name in (("cuconv", "auto"), ("cpu", "fast"))
    ]
    assert all(row.case == CASE.key and len(row.runs_us) == 3 for row in found)
    assert [row.copies for row in found] == [1, 1, 1, 1, 2, 2]
    for row in found:  # a round is two calls, and a row has the time of one
        pause_us = 2e4 if row.provider == "cuconv" else 3e4
        assert pause_us < min(row.runs_us) < 1.9 * pause_us
    assert Begins("cpu", "slow") in begun and Begins("cuconv", "two_stage") not in begun


def test_a_rival_that_is_wrong_or_broken_is_none():
    entered = {"cuconv": Toy("cuconv", {"auto": 0.0}), "cpu": Toy("cpu", {"slow": 0.01, "fast": 0.0})}
    found, begun = rows(entered, broken={Begins("cpu", "fast")})
    assert {row.algorithm for row in found} == {"auto", "slow"} and Begins("cpu", "fast") not in begun
    entered["cpu"].spoil = torch.Tensor.zero_
    (lacks,), _ = rows(entered)
    assert isinstance(lacks, Lacks) and "no rival" in lacks.text
    (lacks,), _ = rows({"cpu": Toy("cpu", {"fast": 0.0})})
    assert "cuConv auto" in lacks.text


def test_a_wrong_output_in_one_copy_is_told():
    """A call that is right on the operands' own memory alone, which it sees first, has no rotated time."""
    seen = []

    def spoil(output):
        seen.append(output.data_ptr())
        if seen[-1] != seen[0]:
            output[0, 0, 0, 0] += 1e3

    entered = {"cuconv": Toy("cuconv", {"auto": 0.0}, spoil), "cpu": Toy("cpu", {"fast": 0.0})}
    found, _ = rows(entered)
    (lacks,) = [one for one in found if isinstance(one, Lacks)]
    assert len(found) == 6 and all(word in lacks.text for word in ("auto", ROTATED, "wrong"))


def test_sustained_runs_follow_a_load_of_the_same_calls():
    ours = Toy("cuconv", {"auto": 0.001})
    calls = []
    for event in measure(CASE, {"cuconv": ours, "cpu": Toy("cpu", {"fast": 0.0})}, OPTIONS, 1):
        if isinstance(event, ConditionTime) and event.provider == "cuconv":
            calls.append((event.condition, ours.calls))
    (hot, first), (sustained, second), _ = calls
    assert (hot, sustained) == (CONDITIONS[0], SUSTAINED)
    assert second > 2 * first, "a load of 50 ms has more calls than all that came before"


def test_other_outputs_than_the_case_s_are_allowed():
    found, _ = rows({"cuconv": Toy("cuconv", {"auto": 0.0}), "cpu": cpu.Contender()})
    assert {row.provider for row in found} == {"cuconv", "cpu"} and len(found) == 6


def test_the_command_writes_rows_and_prints_the_table(made_up_gpu, monkeypatch, capsys):
    def of_case(case, *others):
        for condition in CONDITIONS:
            for name, us in ((("cuconv", "auto"), 10.0), (("torch", "default"), 20.0)):
                yield ConditionTime(case.key, *name, condition, 1, (us,) * 9, 1980)

    monkeypatch.setattr(conditions, "load", lambda provider: Toy(provider, {}))
    monkeypatch.setattr(conditions, "measure", of_case)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("_", (), {"L2_cache_size": 1}))
    assert conditions.main([]) == 0
    assert "24 of 24" in capsys.readouterr().out
    back = CONDITION_TIMES.read(made_up_gpu / "conditions" / "conditions.csv")
    assert len(back) == 24 * 6 and set(back.sm_clock_mhz) == {1980} and set(back.condition) == set(CONDITIONS)
    assert commands(made_up_gpu / "conditions") == ["python -m harness conditions"]


def test_a_dry_run_prints_each_case(capsys):
    assert conditions.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.split() == [case.label for case in sample().cases]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert conditions.main([]) == 2
    assert "GPU" in capsys.readouterr().err
