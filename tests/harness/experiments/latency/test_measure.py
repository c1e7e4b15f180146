"""The programs that the processes run, with a tiny network on a CPU; what the times are is not tested."""

import json
from typing import ClassVar

import pytest
import torch

from harness.experiments.latency import measure
from harness.experiments.latency.measure import convert_rows, milliseconds, size_rows
from tests.harness.experiments.networks import toy_networks


class Watched(toy_networks.ToyModel):
    """A network that notes the size of every call in inference mode."""

    seen: ClassVar[list[tuple[int, ...]]] = []

    def forward(self, x):
        if torch.is_inference_mode_enabled():
            self.seen.append(tuple(x.shape))
        return super().forward(x)


@pytest.fixture
def network(monkeypatch):
    monkeypatch.setattr(Watched, "seen", [])
    return toy_networks.network("toy", Watched)


def test_the_result_is_waited_for_within_the_time_and_what_came_before_is_not(monkeypatch):
    clock, events = iter([10.0, 10.25]), []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: events.append("clock") or next(clock))
    assert milliseconds(lambda: events.append("call"), lambda: events.append("wait")) == 250.0
    assert events == ["wait", "clock", "call", "wait", "clock"]


def test_a_first_a_second_and_five_further_calls_of_each_size_after_one_at_224(network, monkeypatch):
    times = iter([99.0, 7.0, 9.0, 5.0, 1.0, 2.0, 4.0, 3.0, 8.0, 2.0, 1.0, 1.0, 6.0, 6.0, 6.0])
    monkeypatch.setattr(measure, "milliseconds", lambda call, synchronize: call() is None or next(times))
    rows = list(size_rows(network, "torch", [(20, 30), (40, 10)], "cpu", lambda: None))
    assert Watched.seen == [(1, 3, 224, 224), *[(1, 3, 20, 30)] * 7, *[(1, 3, 40, 10)] * 7]
    assert rows == [
        {"height": 20, "width": 30, "first_ms": 7.0, "second_ms": 9.0, "again_ms": 3.0},
        {"height": 40, "width": 10, "first_ms": 8.0, "second_ms": 2.0, "again_ms": 6.0},
    ]


def test_a_converted_model_computes_what_the_model_does_and_its_file_too(network, tmp_path):
    files = {name: tmp_path / f"{name}.pt" for name in ("torch", "cuconv")}
    rows = {name: list(convert_rows(network, name, file, "cpu", lambda: None)) for name, file in files.items()}
    assert rows["torch"] == []
    assert [(row["height"], row["width"], row["again_ms"]) for row in rows["cuconv"]] == [(224, 224, None)]
    x = torch.randn(1, 3, 30, 40)
    plain, converted = (torch.load(file, weights_only=False) for file in files.values())
    assert "Converted" in {base.__name__ for base in type(converted).__mro__}
    with torch.inference_mode():
        torch.testing.assert_close(converted(x), plain(x))


def test_nothing_but_rows_is_written(network, monkeypatch, capsys):
    monkeypatch.setattr(measure.network_models, "find", lambda name: print("noise") or network)
    monkeypatch.setattr(measure, "size_rows", lambda network, contender, sizes, *gpu: [{"sizes": len(sizes)}])
    monkeypatch.setattr(measure, "set_torch", lambda precision, benchmark: None)
    assert measure.main(["size", "toy", "torch", "3", "0"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"sizes": 3} and captured.err == "noise\n"
