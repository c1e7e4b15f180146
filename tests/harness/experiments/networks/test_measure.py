"""The loop over whole networks, on a CPU with a tiny network: rows, order, failures, kernels by kind."""

from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.errors import GpuLost
from harness.experiments.networks import measure as networks
from harness.experiments.networks.contenders import Prepared
from harness.experiments.networks.measure import break_down, measure, relative_error
from harness.isolation import Begins, Lacks, Note
from tests.harness.experiments.networks.toy_networks import Cpu, ToyModel, network, plain, settings


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr(networks, "RUN_US", 1.0)


def broken(model, images, options):
    raise RuntimeError("cannot take this\nnor that")


def rows_of(machine=None, batches=(1,), net=None, **others):
    machine = machine or Cpu()
    case_of = networks.cases(machine, settings(**others))
    events = chain.from_iterable(measure(case_of(net or network(), batch), machine) for batch in batches)
    return [event for event in events if not isinstance(event, (Begins, Note))]


def test_a_row_for_each_batch_contender_and_mode():
    rows = rows_of(batches=(1, 3), torch=plain, cuconv=plain)
    keys = {(row.batch, row.contender, row.mode) for row in rows}
    expected = {(n, name, mode) for n in (1, 3) for name in ("torch", "cuconv") for mode in ("graph", "eager")}
    assert keys == expected and len(rows) == 8
    for row in rows:
        assert (row.network, row.source, row.precision, row.status) == ("toy", "torchvision", "fp32", "ok")
        assert len(row.runs_us) == 2 and min(row.runs_us) > 0 and row.first_forward_s > 0
        assert 0 < row.rel_l2_error < 1e-5 and row.peak_memory_bytes == 234
        assert row.detail == "plain"


def test_in_fp16_model_and_images_are_in_half_precision_and_float64_is_still_the_reference():
    types = set()

    def noting(model, images, options):
        types.update({images.dtype, *(weight.dtype for weight in model.parameters())})
        return plain(model, images, options)

    rows = rows_of(precision="fp16", torch=noting)
    assert types == {torch.float16}
    assert {(row.precision, row.status) for row in rows} == {("fp16", "ok")}
    assert all(1e-5 < row.rel_l2_error < 1e-2 for row in rows)


def test_gradients_are_off():
    modes = []

    def noting(model, images, options):
        return Prepared(lambda: modes.append(torch.is_grad_enabled()) or model(images))

    rows_of(torch=noting)
    assert modes and not any(modes)


def turns():
    """The contenders in the order of their runs, in rounds of eight: a to d, each in two modes."""
    order = []

    def called(name):
        return lambda model, images, options: Prepared(lambda: order.append(name) or model(images))

    rows_of(runs=4, **{name: called(name) for name in "abcd"})
    return ["".join(order[at : at + 8]) for at in range(len(order) - 32, len(order), 8)]


def test_the_contenders_take_turns_in_an_order_of_the_seed(monkeypatch):
    monkeypatch.setattr(Cpu, "capture", lambda self, forward: forward)
    monkeypatch.setattr(networks, "_computed_again", lambda entrant: torch.zeros(1, 5))  # no forward
    rounds = turns()
    assert ["".join(sorted(one)) for one in rounds] == ["aabbccdd"] * 4, "each runs once in each round and mode"
    assert len(set(rounds)) > 1 and turns() == rounds


def test_a_contender_that_fails_gives_rows_with_the_reason_and_the_others_go_on():
    machine = Cpu()
    rows = rows_of(machine, torch=broken, cuconv=plain)
    failed = {row.mode: row for row in rows if row.contender == "torch"}
    assert set(failed) == {"graph", "eager"} and machine.errors == ["torch on toy, batch 1"]
    assert all(row.status == "error" and row.detail == "RuntimeError: cannot take this" for row in failed.values())
    assert [row.status for row in rows if row.contender == "cuconv"] == ["ok", "ok"]


def test_a_contender_that_cannot_be_captured_is_still_timed_eagerly(monkeypatch):
    def capture(self, forward):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Cpu, "capture", capture)
    assert {row.mode: row.status for row in rows_of()} == {"graph": "error", "eager": "ok"}


def test_a_contender_that_fails_while_it_is_timed():
    calls = []

    def tired(model, images, options):
        def forward():
            calls.append(1)
            if len(calls) > 25:
                raise RuntimeError("tired")
            return model(images)

        return Prepared(forward)

    rows = rows_of(runs=9, torch=plain, cuconv=tired)
    found = {(row.contender, row.mode): row.status for row in rows}
    assert len(rows) == len(found) == 4 and "error" in {found["cuconv", "eager"], found["cuconv", "graph"]}
    assert found["torch", "eager"] == found["torch", "graph"] == "ok"


def test_a_wrong_output_is_no_time_and_says_its_error():
    def wrong(model, images, options):
        return Prepared(lambda: 2 * model(images))

    for row in rows_of(torch=wrong):
        assert row.status == "error" and row.detail == "relative L2 error 1, more than 0.05"
        assert row.rel_l2_error == pytest.approx(1, rel=1e-5) and not row.runs_us


def test_a_graph_whose_replay_computes_nothing_is_seen(monkeypatch):
    def capture(self, forward):
        output = forward()
        return lambda: output

    monkeypatch.setattr(Cpu, "capture", capture)
    assert {row.mode: row.status for row in rows_of()} == {"graph": "error", "eager": "ok"}


def test_a_network_that_overflows_is_no_measurement():
    class Overflows(ToyModel):
        def forward(self, x):
            return super().forward(x) * torch.inf

    assert {row.detail for row in rows_of(net=network(build=Overflows))} == {
        "ArithmeticError: the logits in float64 are not finite"
    }


def test_a_network_that_cannot_be_built_gives_rows_with_the_reason():
    def fails():
        raise ValueError("needs 384 pixels")

    wrong = network("wrong", fails)
    assert [row.detail for row in rows_of(net=wrong, batches=(1, 2))] == ["ValueError: needs 384 pixels"] * 4
    case = networks.cases(Cpu(), settings())(wrong, 1)
    assert {type(event) for event in break_down(case, Cpu(), lambda forward, forwards: [])} == {Begins, Lacks}


def test_a_lost_gpu_ends_the_command():
    class Lost(Cpu):
        def after_error(self, what, error):
            raise GpuLost(what)

    with pytest.raises(GpuLost, match="torch on toy, batch 1"):
        rows_of(Lost(), torch=broken)


def test_a_run_fills_its_time_with_forwards(monkeypatch):
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(networks, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    monkeypatch.setattr(networks, "RUN_US", 50_000.0)
    calls = []

    def slow(model, images, options):
        def forward():
            calls.append(1)
            clock.seconds += 0.02
            return model(images)

        return Prepared(forward)

    rows = rows_of(runs=1, torch=slow)
    assert [row.runs_us for row in rows] == [pytest.approx((20_000.0,))] * 2
    assert rows[0].first_forward_s == pytest.approx(0.02)


def test_the_relative_error():
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0]).double()) == pytest.approx(10**0.5 / 5)
    assert relative_error(torch.zeros(2), torch.zeros(3).double()) != relative_error(torch.zeros(3), torch.ones(3))


def test_the_breakdown_is_of_one_forward_and_leaves_out_who_fails():
    def profile(forward, forwards):
        assert isinstance(forward(), torch.Tensor)
        return [("fp16x3", 10.0), ("fp16x3", 20.0), ("ampere_sgemm", 4.0)] * forwards

    case = networks.cases(Cpu(), settings(torch=broken, cuconv=plain))(network(), 2)
    rows = [event for event in break_down(case, Cpu(), profile) if not isinstance(event, (Begins, Note))]
    assert [(row.network, row.batch, row.contender, row.kind, row.kernels, row.us) for row in rows] == [
        ("toy", 2, "cuconv", "convolution", 2.0, 30.0),
        ("toy", 2, "cuconv", "gemm", 1.0, 4.0),
    ]


def test_what_ended_a_process_is_left_out_and_everything_is_announced():
    machine = Cpu()
    case = networks.cases(machine, settings(torch=plain, cuconv=plain))(network(), 1)
    events = list(measure(case, machine, broken={Begins("torch")}))
    assert {event for event in events if isinstance(event, Begins)} == {Begins(), Begins("cuconv")}
    assert {event.contender for event in events if not isinstance(event, Begins)} == {"cuconv"}


def test_a_contender_has_a_model_of_its_own():
    def spoils(model, images, options):
        nn.init.zeros_(model.head.weight)
        return plain(model, images, options)

    rows = rows_of(torch=spoils, cuconv=plain)
    assert {(row.contender, row.status) for row in rows} == {("torch", "error"), ("cuconv", "ok")}


def test_each_contender_of_a_case_is_compiled_once():
    """A contender's compiled code is there in its timed runs, though others were compiled after it."""
    compiled = []

    def compiling(name):
        def backend(graph, inputs):
            compiled.append(name)
            return graph.forward

        def prepare(model, images, options):
            forward = torch.compile(model, backend=backend)
            return Prepared(lambda: forward(images))

        return prepare

    rows_of(batches=(1, 3), torch=compiling("torch"), cuconv=compiling("cuconv"))
    assert sorted(compiled) == ["cuconv", "cuconv", "torch", "torch"]
