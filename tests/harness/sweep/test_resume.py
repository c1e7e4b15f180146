"""Resuming: rows that lack a time that they qualify for are not done."""

from pathlib import Path

import pytest
import torch

from harness.cases.catalogue import load_sweep
from harness.contenders import registry
from harness.store.environment import OWN_FACT, EnvironmentFile
from harness.sweep import session
from harness.sweep.one_case import Options
from harness.sweep.records import ResultsFolder
from harness.sweep.resume import done
from tests.helpers import GPU, row, write

TWICE = {"separated": 1.0, "cold": 1.0}


def rival(name, us=None, **options):
    return row(name, us, provider="cudnn_engine", environment="e1", **options)


ROWS = [
    row("auto", 10.0, environment="e1", **TWICE),
    row("two_stage", 50.0, environment="e1"),
    row("fp16x3", 9.0, environment="e1"),
    row("tf32x3_gemm", status="unsupported", environment="e1"),
    *[rival(f"eng{i}", 20.0 + i, **TWICE) for i in range(1, 4)],
    rival("eng4", 24.0, separated=1.0),
    rival("eng5", 25.0),
    rival("eng6", 26.0),
    rival("eng7", 5.0, precision="tf32"),
    rival("eng9", 1.0, status="workspace_exceeded"),
    rival("eng10", status="workspace_exceeded"),
    rival("eng8", 30.0, batch=8),
    row("auto", 10.0, environment="e2", batch=8, **TWICE),
]


FIRST, SECOND = ((batch, 7, 7, 832, 32, 1, 0, 1, 1, 1, 1, 0) for batch in (1, 8))
ALL = {
    *{("cuconv", name) for name in ("auto", "two_stage", "fp16x3", "tf32x3_gemm")},
    *{("cudnn_engine", f"eng{i}") for i in (*range(1, 7), 9, 10)},
}
COMPLETE = ALL - {("cuconv", "two_stage"), ("cudnn_engine", "eng4"), ("cudnn_engine", "eng5")}


@pytest.mark.parametrize(
    ("environments", "precision", "other_times", "expected"),
    [
        ({"e1", "e2"}, "fp32", False, {FIRST: ALL, SECOND: {("cuconv", "auto"), ("cudnn_engine", "eng8")}}),
        ({"e1"}, "fp32", False, {FIRST: ALL, SECOND: {("cudnn_engine", "eng8")}}),
        ({"e1", "e2"}, "fp32", True, {FIRST: COMPLETE, SECOND: {("cuconv", "auto")}}),
        ({"e1"}, "tf32", False, {FIRST: {("cudnn_engine", "eng7")}}),
        ({"e1"}, "tf32", True, {FIRST: set()}),
        ({"e3"}, "fp32", True, {}),
    ],
)
def test_a_row_that_lacks_a_time_that_it_qualifies_for_is_not_done(
    tmp_path, environments, precision, other_times, expected
):
    with ResultsFolder(write(tmp_path, ROWS).parent) as folder:
        assert done(folder, environments, (), precision, GPU, other_times) == expected


@pytest.mark.parametrize(("file", "kept"), [("same", {"my_kernel", "cuconv"}), ("changed", {"cuconv"})])
def test_a_contender_of_one_s_own_is_measured_again_where_its_file_has_changed(tmp_path, monkeypatch, file, kept):
    works, device = [], torch.device("cpu")
    monkeypatch.setattr(registry, "OWN", Path("my_kernel.py"))
    monkeypatch.setattr(session.supervisor, "run", lambda problems, work, options: works.append(work))
    facts = {"gpu": "NVIDIA Test", OWN_FACT: "same", "commands": []}
    name = EnvironmentFile(tmp_path).enter(facts)
    mine = row("conv2d", provider="my_kernel", environment=name)
    with ResultsFolder(tmp_path) as folder:
        for one in (mine, row("auto", environment=name)):
            folder.append(one)
    sweep, options = load_sweep("smoke"), Options(device, (), None, 1, 0, 0, "", GPU)
    session.measure(sweep, options, facts | {OWN_FACT: file}, tmp_path, resume=True)
    assert {provider for provider, _ in works[0]._choice.done[FIRST]} == kept
