"""A contender of one's own: a file outside of the project, measured and reported like the others."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuconv.core.problem import ConvProblem
from harness import run
from harness.contenders import own, registry
from harness.contenders.base import NotRunnable, Operands
from harness.errors import UsageError
from harness.sweep.rivals import takes_part
from tests.helpers import GPU, row, write

PROBLEM = ConvProblem(2, 4, 7, 8, 5, 3, 3, 1, 1)
KERNEL = """
import torch

def conv2d(input, weight, stride, padding, dilation, groups):
    if weight.shape[2] == 1:
        raise ValueError("no 1x1 filters")
    return torch.nn.functional.conv2d(input, weight, None, stride, padding, dilation, groups)
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that makes the contender of a file with some content."""

    def make(content):
        path = tmp_path / "my_kernel.py"
        path.write_text(content)
        monkeypatch.setattr(own, "OWN", path)
        return own.Contender("fp32")

    return make


def test_its_one_algorithm_is_prepared_and_computes(made):
    operands = Operands.random(PROBLEM, torch.Generator().manual_seed(1))
    (offer,) = made(KERNEL).offers(PROBLEM, operands)
    assert (offer.provider, offer.algorithm, offer.precision) == ("my_kernel", "conv2d", "fp32")
    expected = torch.nn.functional.conv2d(operands.input, operands.weight, padding=1)
    torch.testing.assert_close(offer.prepare().call(), expected)


def test_what_it_refuses_is_no_error(made):
    problem = ConvProblem(2, 4, 7, 8, 5, 1, 1, 0, 0)
    (offer,) = made(KERNEL).offers(problem, Operands.random(problem, torch.Generator()))
    with pytest.raises(NotRunnable, match="no 1x1 filters"):
        offer.prepare()


@pytest.mark.parametrize(
    "content", ["def conv(): pass", "conv2d = 3", "import no_such_module", "def conv2d(:", "import sys; sys.exit(3)"]
)
def test_a_file_that_is_none_is_a_user_s_mistake(made, content):
    with pytest.raises(UsageError, match=r"my_kernel\.py"):
        made(content)


def test_what_lies_beside_the_file_is_imported_and_part_of_what_is_compared(made, tmp_path):
    helper = tmp_path / "beside_my_kernel.py"
    helper.write_text(KERNEL)
    contender = made("from beside_my_kernel import conv2d")
    assert len(contender.offers(PROBLEM, Operands.random(PROBLEM, torch.Generator()))) == 1
    before = own.facts()
    assert before == own.facts()
    helper.write_text(f"{KERNEL}\n")
    changed = own.facts()
    assert changed != before
    made(KERNEL)
    assert own.facts() not in (before, changed)


def test_on_a_cpu_it_is_refused(tmp_path, capsys):
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    assert run.main(["--device", "cpu", "--contender", str(tmp_path / "my_kernel.py"), "--out", str(tmp_path)]) == 2
    assert "my_kernel.py" in capsys.readouterr().err and not (tmp_path / "measurements.csv").exists()


def test_it_is_measured_in_fp32_alone_and_next_to_any_contender(tmp_path):
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    command = [sys.executable, "-m", "harness.run", "--contender", str(tmp_path / "my_kernel.py"), "--dry-run"]
    named = subprocess.run([*command, "--provider", "cuconv"], capture_output=True, text=True)
    assert named.returncode == 0 and "my_kernel" in named.stdout.splitlines()[-1]
    assert subprocess.run([*command, "--precision", "tf32"], capture_output=True).returncode == 2


def test_it_takes_part_in_a_quick_look(monkeypatch):
    monkeypatch.setattr(registry, "OWN", Path("my_kernel.py"))
    monkeypatch.setitem(registry.PROVIDERS, "my_kernel", replace(registry.PROVIDERS["cublas"], name="my_kernel"))
    assert takes_part(frozenset(), "my_kernel", "conv2d", GPU)
    assert not takes_part(frozenset(), "cudnn", "gemm", GPU)


@pytest.mark.parametrize("name", ["nowhere.py", "my_kernel.txt", "cudnn.py"])
def test_other_files_are_refused(tmp_path, capsys, name):
    if name != "nowhere.py":
        (tmp_path / name).write_text(KERNEL)
    with pytest.raises(SystemExit) as end:
        run.main(["--contender", str(tmp_path / name), "--list"])
    assert end.value.code == 2 and name in capsys.readouterr().err


def test_its_rows_are_compared_with_the_best_of_cudnn(tmp_path):
    assert registry.OWN is None
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    write(
        tmp_path / "results",
        [row("gemm", 30.0, provider="cudnn"), row("auto", 20.0), row("conv2d", 10.0, provider="my_kernel")],
    )
    command = [sys.executable, "-m", "harness", "report", "tables", "--results", "results"]
    mine = [*command, "--contender", "my_kernel.py", "--subject", "my_kernel/conv2d"]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    for typed, expected in ((mine, "3.00x"), (command, "1.50x")):
        done = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert expected in done.stdout
    assert "left out 1 rows of my_kernel" in done.stderr
