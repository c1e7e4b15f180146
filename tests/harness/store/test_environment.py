"""Reports of machine, libraries and code: their facts, which are comparable, and which a folder keeps."""

import pytest
import torch

from harness import command
from harness.errors import ResultsError
from harness.store import environment
from tests.helpers import commands

GPU = {"gpu": "NVIDIA Test", "cpu": "one", "torch": "2.13.0", "code": "abc", "commit": "1"}
CPU = GPU | {"gpu": None}


def test_a_report_names_the_processor_and_what_was_typed():
    facts = environment.report(torch.device("cpu"), "python -m harness.run")
    assert facts["cpu"] and facts["code"] == environment.fingerprint(*environment.MEASURING)
    assert [entry["command"] for entry in facts["commands"]] == ["python -m harness.run"]


def test_a_gpu_report_names_the_processor_too(monkeypatch):
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test"})
    facts = environment.report(torch.device("cuda", 0), "python -m harness host")
    assert facts["gpu"] == "NVIDIA Test" and facts["cpu"] == environment.report(torch.device("cpu"), "")["cpu"]


def test_the_fingerprint_is_of_code_and_not_of_words(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for name, text in (("a.py", "x = 1  # one\n"), ("b.toml", "us = 2.5  # of a kernel\n")):
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / name).write_text(text)
    before = environment.fingerprint("code")
    (tmp_path / "code" / "a.py").write_text('"""A module."""\n\nx = 1\n')
    (tmp_path / "code" / "b.toml").write_text("us = 2.5\n")
    assert environment.fingerprint("code") == before
    (tmp_path / "code" / "b.toml").write_text("us = 2.6\n")
    assert environment.fingerprint("code") != before


def test_the_code_that_measures_is_in_the_fingerprint():
    every = environment.fingerprint(*environment.MEASURING)
    for place in environment.MEASURING:
        others = [other for other in environment.MEASURING if other != place]
        assert environment.fingerprint(*others) != every, place


def test_reports_that_cannot_be_read_are_none(tmp_path):
    assert environment.read(tmp_path) == {}
    (tmp_path / "environment.json").write_text("[1]")
    assert environment.read(tmp_path) == {}


DAMAGED = [b"", b"{", b"[]", b'{"environments": []}', b'{"environments": {"a": 1}}', b"\xff", b'{"a":' * 99_999]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:30]))
def test_a_damaged_file_is_not_written_over(tmp_path, content):
    path = tmp_path / "environment.json"
    path.write_bytes(content)
    assert environment.read(tmp_path) == {}
    with pytest.raises(ResultsError, match=r"environment\.json cannot be read \(.*\): restore it"):
        environment.EnvironmentFile(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (GPU, GPU | {"cpu": "another", "commit": "2", "clocks": {}}, True),
        (GPU, {name: fact for name, fact in GPU.items() if name != "cpu"}, True),  # a report without it
        (GPU, GPU | {environment.OWN_FACT: "abc"}, True),  # it counts for the rows of that contender alone
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
    assert command.line("harness.run", ["--out", "a b"]) == "python -m harness.run --out 'a b'"
    monkeypatch.setattr("sys.argv", ["measure.py", "--counters"])
    typed = "python -m harness kernels --counters"
    assert command.line("harness kernels", None) == typed


@pytest.mark.parametrize(("alone", "kept"), [(True, ["second"]), (False, ["first", "second"])])
def test_a_folder_keeps_other_reports_unless_all_is_measured_again(made_up_gpu, tmp_path, monkeypatch, alone, kept):
    environment.report_gpu(tmp_path, "first", alone=False)
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test", "driver": "580.2"})
    environment.report_gpu(tmp_path, "second", alone=alone)
    assert commands(tmp_path) == kept
