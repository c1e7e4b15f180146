"""What a measurement depends on: what a report says, which reports are comparable, and what a folder keeps of them."""

import pytest
import torch

from harness.results import environment
from tests.helpers import commands

GPU = {"gpu": "NVIDIA Test", "cpu": "one", "torch": "2.13.0", "code": "abc", "commit": "1"}
CPU = GPU | {"gpu": None}


def test_a_report_names_the_processor_and_what_was_typed():
    facts = environment.report(torch.device("cpu"), "python -m harness.run")
    assert facts["cpu"] and facts["code"] == environment.fingerprint("cuconv", "harness")
    assert [entry["command"] for entry in facts["commands"]] == ["python -m harness.run"]


def test_a_gpu_report_names_the_processor_too(monkeypatch):
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test"})
    facts = environment.report(torch.device("cuda", 0), "python -m harness.host")
    assert facts["gpu"] == "NVIDIA Test" and facts["cpu"] == environment.report(torch.device("cpu"), "")["cpu"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (GPU, GPU | {"cpu": "another", "commit": "2", "clocks": {}}, True),
        (GPU, {name: fact for name, fact in GPU.items() if name != "cpu"}, True),  # as older reports are
        (GPU, GPU | {"gpu": "another"}, False),
        (GPU, GPU | {"code": "def"}, False),
        (GPU, CPU, False),
        (CPU, CPU | {"commit": "2"}, True),
        (CPU, CPU | {"cpu": "another"}, False),
    ],
)
def test_the_processor_counts_only_where_it_computes(one, other, same):
    assert environment.comparable(one, other) == environment.comparable(other, one) == same


def test_a_command_is_told_as_it_was_typed(monkeypatch):
    assert environment.command_line("harness.run", ["--out", "a b"]) == "python -m harness.run --out 'a b'"
    monkeypatch.setattr("sys.argv", ["host.py", "--table", "3"])
    assert environment.command_line("harness.profile", None) == "python -m harness.profile --table 3"


@pytest.mark.parametrize(("alone", "kept"), [(True, ["second"]), (False, ["first", "second"])])
def test_a_folder_keeps_other_reports_unless_all_is_measured_again(made_up_gpu, tmp_path, monkeypatch, alone, kept):
    environment.report_gpu(tmp_path, "first", alone=False)
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test", "driver": "580.2"})
    environment.report_gpu(tmp_path, "second", alone=alone)
    assert commands(tmp_path) == kept
