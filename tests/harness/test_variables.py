"""Environment variables that change what is measured."""

import pytest
import torch

from harness import run, variables
from harness.contenders.base import load
from harness.errors import UsageError
from harness.store import environment


@pytest.fixture(autouse=True)
def none_is_set(monkeypatch):
    for name in (*variables.REFUSED, *variables.RECORDED):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", variables.REFUSED)
def test_a_variable_that_changes_fp32_or_launches_is_refused(monkeypatch, tmp_path, capsys, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(UsageError, match=f"^{name}=1: .* must be 0 or not set: 'unset {name}'$"):
        load("cpu")
    assert run.main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 2
    assert f"harness.run: {name}=1: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["", "0"])
def test_it_may_be_off(monkeypatch, value):
    for name in variables.REFUSED:
        monkeypatch.setenv(name, value)
    variables.refuse()


def test_other_variables_are_recorded_and_make_another_measurement(monkeypatch):
    plain = environment.report(torch.device("cpu"), "x")
    assert "variables" not in plain
    set_to = {"CUDNN_CONV_WSCAP_DBG": "512", "TORCHINDUCTOR_FREEZING": "1"}
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/anywhere")
    other = environment.report(torch.device("cpu"), "x")
    assert other["variables"] == set_to
    assert not environment.comparable(plain, other)
    assert environment.identifier(plain) != environment.identifier(other)
