"""Host time: the calls that are timed, by a clock that the calls themselves advance; the table and the CSV."""

import csv
from types import SimpleNamespace

import pytest
import torch

from harness.cases.catalogue import problem_labelled
from harness.experiments.host import first_call
from harness.experiments.host import measure as host
from harness.experiments.host.measure import render, times_us
from harness.experiments.host.rows import HOST, HostTime
from tests.helpers import commands

ROWS = [
    HostTime("7-1-1-256-832", "cuconv", "auto", "new", 2000, 8.25),
    HostTime("7-1-1-256-832", "torch", "default", "new", 2000, 40 / 3),
    HostTime("7-8-1-256-832", "cuconv", "auto", "new", 2000, 8.5),
    HostTime("7-8-1-256-832", "torch", "default", "new", 2000, 14.0),
]


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(host, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    return clock


def test_calls_are_timed_without_warm_up_and_waiting(clock):
    events = []

    def call():
        events.append("call")
        clock.seconds += 1.0 if events.count("call") <= host.WARM_UP_CALLS else 7e-6

    def synchronize():
        events.append("wait")
        clock.seconds += 10.0

    assert times_us(call, synchronize) == pytest.approx([7.0] * host.CALLS, rel=1e-3)
    assert events.count("call") == host.WARM_UP_CALLS + host.CALLS
    timed = "".join("c" if event == "call" else "w" for event in events[host.WARM_UP_CALLS :])
    assert max(map(len, timed.split("w"))) == host.CALLS_IN_QUEUE
    assert timed[0] == timed[-1] == "w"


def test_each_call_convolves_the_same_tensors(monkeypatch):
    calls = []

    def conv2d(x, weight, *, padding, algorithm="auto", out=None):
        calls.append((algorithm, out is not None))
        result = torch.nn.functional.conv2d(x, weight, padding=padding)
        return result if out is None else out.copy_(result)

    monkeypatch.setattr(host.cuconv, "conv2d", conv2d)
    found = host.calls_of(problem_labelled("7-2-3-4-5"), "cpu")
    outputs = [call() for call in found.values()]
    assert all(torch.equal(output, outputs[0]) for output in outputs) and outputs[0].shape == (2, 4, 7, 7)
    assert calls == [(algorithm, output == "given") for provider, algorithm, output in found if provider == "cuconv"]
    assert ("torch", "default", "new") in found


def test_layers_take_turns_without_gradients_and_the_median_call_counts(monkeypatch):
    order, modes = [], []

    def times_us(call, wait):
        order.append(call())
        modes.append(torch.is_grad_enabled())
        return [call() + 0.5, call() + 100.0 * (len(order) % 2), call() - 0.5]

    monkeypatch.setattr(host, "calls_of", lambda problem, device: {("cuconv", "auto", "new"): lambda: problem.n})
    monkeypatch.setattr(host, "times_us", times_us)
    rows = host.measure(["7-1-1-4-5", "7-8-1-4-5"], "cpu", lambda: None)
    assert order == [1, 8] * host.ROUNDS and not any(modes)
    assert [(row.layer, row.calls, row.median_us) for row in rows] == [
        ("7-1-1-4-5", 3 * host.ROUNDS, 1.5),  # of which a third is 100 slower
        ("7-8-1-4-5", 3 * host.ROUNDS, 8.0),
    ]


def test_table_has_a_line_for_each_layer():
    assert render(ROWS).splitlines() == [
        "| host us, HW-N-K-M-C | cuconv auto, output new | torch default, output new |",
        "| ------------------- | ----------------------: | ------------------------: |",
        "| 7-1-1-256-832       |                    8.25 |                     13.33 |",
        "| 7-8-1-256-832       |                    8.50 |                     14.00 |",
    ]


def test_first_calls_have_a_line_with_one_time():
    first = HostTime(first_call.LAYER, "cuconv", "auto", "new", 400, 150.0)
    assert render([*ROWS, first]).splitlines()[-1].split() == ["|", "a", "new", "shape", "|", "150.00", "|", "|"]


def test_each_call_that_is_timed_is_the_first_of_its_size(monkeypatch):
    events = []
    monkeypatch.setattr(first_call.call_cache, "forget", lambda: events.append("forget"))
    first = first_call.FirstCall("name", range(2), lambda size: lambda: events.append(size))
    times = first_call.times_us(first, lambda: events.append("wait"))
    assert len(times) == 2 * first_call.ROUNDS and min(times) > 0
    assert events[:8] == [0, 1, "forget", "wait", 0, "forget", "wait", 1]


def test_csv_keeps_full_precision(tmp_path):
    path = HOST.write(tmp_path / "device" / "host", ROWS)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(ROWS)
    assert rows[1] == {
        "layer": "7-1-1-256-832",
        "provider": "torch",
        "algorithm": "default",
        "output": "new",
        "calls": "2000",
        "median_us": "13.3333333",
    }


def test_times_are_written_with_what_they_depend_on(made_up_gpu, monkeypatch):
    monkeypatch.setattr(host, "load", lambda provider: None)
    monkeypatch.setattr(host, "measure", lambda *arguments: ROWS)
    monkeypatch.setattr(host, "measure_first", lambda *arguments: [])
    monkeypatch.setattr(first_call, "check", lambda: None)
    assert host.main([]) == 0
    assert {path.name for path in (made_up_gpu / "host").glob("[a-z]*")} == {"host.csv", "environment.json"}
    assert commands(made_up_gpu / "host") == ["python -m harness host"]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert host.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "GPU" in captured.err and len(captured.err.splitlines()) == 1
