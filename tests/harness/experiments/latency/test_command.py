"""The command line: what it prints, refuses and writes, and the processes that it starts, with programs made up."""

import json
import os
import re
import runpy
import subprocess
import sys

import pytest
import torch

from harness.experiments.latency import command as program
from harness.experiments.latency import run
from harness.experiments.latency.rows import LATENCY
from harness.experiments.networks import models as network_models
from tests.helpers import commands

# A program in the place of those that need a GPU: it writes the rows of its arguments, after its own code.
MADE_UP = """
import json, os, sys
from pathlib import Path
what, network, contender, *rest = sys.argv[1:]
cache = Path(os.environ["CUCONV_CACHE_DIR"])
def row(height, first, again=None):
    times = {"first_ms": first, "second_ms": again, "again_ms": again}
    print(json.dumps({"height": height, "width": 300, **times}), flush=True)
CODE
if what == "size":
    for number in range(int(rest[0])):
        row(100 + number, 1000.0 if not cache.exists() else 10.0, 1.0)
    cache.mkdir(exist_ok=True)
elif what == "convert":
    Path(rest[0]).write_text(contender)
    if contender == "cuconv":
        row(224, 60000.0 if not cache.exists() else 2000.0)
    cache.mkdir(exist_ok=True)
"""
START = """
import json, sys, time
from pathlib import Path
assert time.time() - float(sys.argv[2]) >= 0 and float(sys.argv[2]) > 1.7e9
print(json.dumps({"height": 224, "width": 224, "second_ms": None, "again_ms": None,
                  "first_ms": {"torch": 3000.0, "cuconv": 4000.0}[Path(sys.argv[1]).read_text()]}))
"""


@pytest.fixture
def made_up(made_up_gpu, monkeypatch, tmp_path):
    """A command whose processes run MADE_UP with some code; returns a function that sets this code."""
    (tmp_path / "programs").mkdir()

    def write(code=""):
        (tmp_path / "programs" / "made_up.py").write_text(MADE_UP.replace("CODE", code))
        (tmp_path / "programs" / "made_up_start.py").write_text(START)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "programs"))
    monkeypatch.setattr(run, "MEASURE", "made_up")
    monkeypatch.setattr(run, "START_PROGRAM", "made_up_start")
    monkeypatch.setattr(network_models, "find", lambda name: None)
    write()
    return write


@pytest.fixture
def folder(made_up, made_up_gpu):
    """The folder of the results."""
    return made_up_gpu / "latency"


def refused(capsys, *arguments):
    """The sentence with which a command ends."""
    assert program.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("harness latency: ")
    return captured.err


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "NVIDIA GPU, and torch sees none: '--dry-run'" in refused(capsys)


def test_a_dry_run_needs_no_gpu_and_no_package(capsys):
    assert program.main(["--net", "resnet18", "torchvision:resnet18", "timm:any", "--sizes", "3", "--seed", "5",
                         "--dry-run"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    factors = [(int(count), int(rows)) for count, rows in re.findall(r": (\d+) x (\d+)", printed)]
    assert sum(count for count, _ in factors) == 15 and sum(count * rows for count, rows in factors) == 26
    assert printed.count("resnet18") == printed.count("timm:any") == 3 and "15 processes, 26 rows" in printed


def test_by_default_two_networks_forty_sizes_and_starts(capsys):
    assert program.main(["--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("1 x 40 rows") == 2 * 3
    assert printed.endswith("15 processes, 248 rows\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--net", "hub:resnet18"], "--net hub:resnet18: must be one of alexnet, "),
        (["--sizes", "0"], "--sizes 0: must be 1 to 1000"),
        (["--sizes", "1001"], "--sizes 1001: must be 1 to 1000"),
        (["--contender", "cudnn"], "--contender cudnn: must be one of torch, cuconv"),
        (["--what", "convert"], "--what convert: must be one of size, start"),
    ],
)
def test_a_wrong_choice_is_one_sentence(capsys, arguments, sentence):
    assert sentence in refused(capsys, *arguments, "--dry-run")


def test_rows_tables_and_the_environment(folder, capsys):
    assert program.main(["--net", "resnet18", "--sizes", "2"]) == 0
    frame = LATENCY.read(folder / "latency.csv")
    size = frame[frame.what == "size"]
    assert size.contender.to_list() == ["torch", "torch", "cuconv", "cuconv", "cuconv", "cuconv"]
    assert size.cache.to_list() == ["-", "-", "empty", "empty", "full", "full"]
    assert size.first_ms.to_list() == [1000.0, 1000.0, 1000.0, 1000.0, 10.0, 10.0], "a full cache is the empty one's"
    assert frame[frame.what == "convert"].first_ms.to_list() == [60000.0, 2000.0]
    assert sorted(frame[frame.what == "start"].first_ms) == [3000.0] * 3 + [4000.0] * 3
    (facts,) = json.loads((folder / "environment.json").read_text())["environments"].values()
    assert {"code", "torch", "torchvision", "timm"} <= set(facts)
    assert commands(folder) == ["python -m harness latency --net resnet18 --sizes 2"]
    captured = capsys.readouterr()
    printed = " ".join(captured.out.split())
    assert "| resnet18 | cuConv | full | 2 | 10.00 | 10.00 | 10.00 | 1.00 |" in printed
    assert "| resnet50 | cuConv | full | 4.00 | 3 | 2.00 |" in printed
    assert captured.out.endswith(f"results: {folder}\n")


def test_another_network_is_added_and_the_same_one_replaced(folder):
    assert program.main(["--net", "resnet18", "--sizes", "3", "--what", "size"]) == 0
    assert program.main(["--net", "mobilenet_v2", "--sizes", "1", "--what", "size"]) == 0
    assert program.main(["--net", "resnet18", "--sizes", "2", "--what", "size", "--contender", "torch"]) == 0
    counts = LATENCY.read(folder / "latency.csv").value_counts(["network", "contender", "cache"]).to_dict()
    assert counts == {
        ("resnet18", "torch", "-"): 2, ("resnet18", "cuconv", "empty"): 3, ("resnet18", "cuconv", "full"): 3,
        ("mobilenet_v2", "torch", "-"): 1, ("mobilenet_v2", "cuconv", "empty"): 1,
        ("mobilenet_v2", "cuconv", "full"): 1,
    }  # fmt: skip
    assert len(commands(folder)) == 3


def test_processes_get_the_network_the_sizes_and_no_tf32(made_up, folder, capsys):
    made_up("assert (network, rest) == ('torchvision:resnet18', ['2', '9']), sys.argv\n"
            "assert os.environ['NVIDIA_TF32_OVERRIDE'] == '0'")  # fmt: skip
    assert program.main(["--net", "resnet18", "--sizes", "2", "--seed", "9", "--what", "size"]) == 0


def test_after_a_failure_the_others_go_on_and_what_needs_it_is_left_out(made_up, folder, capsys):
    made_up("if contender == 'cuconv' and what == 'size':\n    row(100, 5.0, 1.0)\n    sys.exit('no such kernel')\n")
    assert program.main(["--net", "resnet18", "--sizes", "2"]) == 2
    frame = LATENCY.read(folder / "latency.csv")
    size = frame[frame.what == "size"]
    assert size.contender.to_list() == ["torch", "torch", "cuconv"] and size.cache.to_list() == ["-", "-", "empty"]
    assert len(frame[frame.what == "start"]) == 6
    captured = capsys.readouterr()
    assert "size resnet18 cuconv, cache empty failed:\nno such kernel\n" in captured.out + captured.err
    assert captured.err.splitlines()[-1] == (
        "harness latency: 2 of 12 processes failed or need one that did, so that rows are missing or old: "
        "size resnet18 cuconv, cache empty; size resnet18 cuconv, cache full"
    )


def test_an_interrupted_command_keeps_its_rows(made_up, folder, capsys):
    made_up("if contender == 'cuconv':\n    row(100, 5.0, 1.0)\n    import signal\n"
            "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n    os.kill(os.getpid(), signal.SIGINT)\n")  # fmt: skip
    assert program.main(["--net", "resnet18", "--sizes", "2", "--what", "size"]) == 130
    assert "interrupted; the rows so far are kept; measure the rest with --what" in capsys.readouterr().err
    assert LATENCY.read(folder / "latency.csv").contender.to_list() == ["torch", "torch", "cuconv"]
    assert len(commands(folder)) == 1


def test_an_interrupt_of_the_command_alone_ends_its_process(made_up, folder, monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    made_up(f"Path({str(pid)!r}).write_text(str(os.getpid()))\nrow(100, 5.0, 1.0)\nimport time\ntime.sleep(600)\n")

    def interrupt(*columns, **others):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "Latency", interrupt)
    assert program.main(["--net", "resnet18", "--what", "size"]) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_program_that_is_started_imports_little():
    code = "import sys, harness.experiments.latency.start; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "torch" in loaded and not {"pandas", "cuconv", "torchvision"} & set(loaded)
    assert not [
        name
        for name in loaded
        if name.startswith("harness.") and not name.startswith(("harness.experiments", "harness.streams"))
    ]


def test_what_is_started_for_a_measurement_is_a_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["measure"])
    with pytest.raises((SystemExit, ValueError, IndexError)):
        runpy.run_module(run.MEASURE, run_name="__main__")
