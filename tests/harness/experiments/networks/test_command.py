"""The command that measures whole networks: what it prints, refuses and writes, with a tiny network on a CPU."""

import itertools
import json
import sys

import pytest
import torch

from harness import isolation
from harness.experiments.networks import command as program
from harness.experiments.networks import energy
from harness.experiments.networks import measure as measuring
from harness.experiments.networks import models as network_models
from harness.experiments.networks.rows import ENERGY, NETWORKS
from harness.isolation import Begins
from harness.stopwatch import profiler
from tests.harness.experiments.networks import toy_networks
from tests.harness.experiments.networks.toy_networks import plain
from tests.helpers import commands

NAMES = ("torch", "torch_channels_last", "torch_compile", "torch_compile_frozen", "cuconv", "cuconv_enabled")


@pytest.fixture
def toy(monkeypatch, made_up_gpu):
    """A command that measures a tiny network on a CPU; returns the folder of its results."""
    monkeypatch.setattr(program, "CONTENDERS", dict.fromkeys(NAMES, plain))
    monkeypatch.setattr(program, "set_torch", lambda precision: None)
    monkeypatch.setattr(network_models, "find", lambda name: toy_networks.network(name))
    monkeypatch.setattr(measuring, "Gpu", toy_networks.Cpu)
    monkeypatch.setattr(measuring, "RUN_US", 1.0)
    return made_up_gpu / "networks"


def refused(capsys, *arguments):
    """The sentence with which a command ends."""
    assert program.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("harness networks: ")
    return captured.err


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "NVIDIA GPU, and torch sees none: '--dry-run'" in refused(capsys)


def test_a_dry_run_needs_no_gpu_and_no_package(capsys):
    assert program.main(["--net", "resnet50", "timm:any", "--batch", "1", "8", "1", "--contender", "cuconv", "torch",
                         "--dry-run"]) == 0  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "networks: resnet50, timm:any",
        "batches: 1, 8",
        "contenders in fp32: torch, cuconv",
        "contenders in tf32: torch, cuconv",
        "contenders in fp16: torch, cuconv",
        "2 networks x 2 batches x 6 contenders in these precisions x 2 modes (graph, eager) = 48 rows",
    ]


def test_contenders_that_a_precision_lacks_are_refused(capsys):
    only = ["--contender", "torch_fastest_engines", "--dry-run", "--precision"]
    assert program.main([*only, "fp32"]) == 0
    assert capsys.readouterr().out.endswith("30 rows\n")
    assert "torch_fastest_engines: none of them computes in tf32" in refused(capsys, *only, "fp32", "tf32")
    assert "cuconv_enabled: none of them computes in fp16" in refused(
        capsys, "--contender", "cuconv_enabled", "--dry-run", "--precision", "fp16"
    )


def test_by_default_five_networks_three_batches_eight_contenders_and_all_precisions_that_they_have(capsys):
    assert program.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.endswith(f"{5 * 3 * (8 + 7 + 6) * 2} rows\n")  # in FP16 without `enabled`
    assert program.main(["--dry-run", "--contender", "cuconv_enabled"]) == 0
    assert "fp16" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--net", "resnet49"], "--net resnet49: must be one of alexnet, "),
        (["--batch", "0"], "--batch 0: must be at least 1"),
        (["--contender", "cudnn"], "--contender cudnn: must be one of torch, torch_channels_last, "),
    ],
)
def test_a_wrong_choice_is_one_sentence(capsys, arguments, sentence):
    assert sentence in refused(capsys, *arguments, "--dry-run")


def test_rows_and_the_environment_are_written(toy, capsys):
    assert program.main(["--net", "alexnet", "--batch", "1", "2", "--precision", "fp32"]) == 0
    rows = NETWORKS.read(toy / "networks.csv")
    assert len(rows) == 2 * len(NAMES) * 2 and set(rows.status) == {"ok"} and set(rows.network) == {"alexnet"}
    stored = json.loads((toy / "environment.json").read_text())["environments"]
    assert set(rows.environment) == set(stored)
    (facts,) = stored.values()
    assert {"code", "torch", "torchvision", "timm"} <= set(facts)
    assert commands(toy) == ["python -m harness networks --net alexnet --batch 1 2 --precision fp32"]
    printed = capsys.readouterr().out
    assert "| alexnet" in printed and f"24 rows, 0 of them failed\nresults: {toy / 'networks.csv'}" in printed


def test_an_interrupted_command_keeps_its_rows(toy, monkeypatch, capsys):
    def find(name):
        if name == "vgg19":
            return toy_networks.network(name, interrupt)
        return toy_networks.network(name)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(network_models, "find", find)
    assert program.main(["--net", "alexnet", "vgg19", "--batch", "1", "--precision", "fp32"]) == 130
    assert "the rows so far are kept" in capsys.readouterr().err
    assert len(NETWORKS.read(toy / "networks.csv")) == 2 * len(NAMES)
    assert len(commands(toy)) == 1


def test_the_breakdown_is_printed_and_written(toy, monkeypatch, capsys):
    monkeypatch.setattr(profiler, "kernels", lambda call, calls: [("fp16x3", 3.0), ("sgemm", 1.0)] * calls)
    arguments = ["--net", "alexnet", "--batch", "1", "--precision", "tf32", "--contender", "cuconv"]
    assert program.main([*arguments, "--breakdown"]) == 0
    assert (toy / "breakdown.csv").read_text().splitlines()[1:] == [
        "alexnet,1,cuconv,tf32,convolution,1,3", "alexnet,1,cuconv,tf32,gemm,1,1",
    ]  # fmt: skip
    assert "| alexnet |     1 | cuconv    | tf32      | convolution |       1 | 3.0 |" in capsys.readouterr().out
    assert not (toy / "networks.csv").exists()
    assert program.main(arguments) == 0
    assert len(commands(toy)) == 2, "the report of a breakdown stays beside that of the times"


def test_a_profiler_that_sees_nothing_is_one_sentence(toy, monkeypatch, capsys):
    monkeypatch.setattr(profiler, "kernels", lambda call, calls: [])
    assert program.main(["--net", "alexnet", "--batch", "1", "--precision", "fp32", "--breakdown"]) == 2
    assert "no kernel was recorded: check that this user may profile the GPU" in capsys.readouterr().err


@pytest.fixture
def counter(toy, monkeypatch):
    """Let each reading of the energy counter be 7 mJ more; measurements are short."""
    readings = itertools.count(0, 7)
    monkeypatch.setattr(energy, "counter_of", lambda device: lambda: next(readings))
    for duration in ("WARM_UP_S", "SECONDS", "BURST_US"):
        monkeypatch.setattr(energy, duration, 1e-6)


OF_ALEXNET = ["--energy", "--net", "alexnet", "--batch", "1", "--precision", "fp32", "--contender", "torch", "cuconv"]


def test_energies_are_printed_and_written_beside_times_and_a_second_command_replaces_them(toy, counter, capsys):
    assert program.main(OF_ALEXNET) == 0
    rows = ENERGY.read(toy / "energy.csv")
    assert list(rows.contender) == ["torch", "cuconv"] and set(rows.network) == {"alexnet"}
    stored = json.loads((toy / "environment.json").read_text())["environments"]
    assert set(rows.environment) == set(stored)
    assert capsys.readouterr().out.count("| alexnet ") == 2
    assert set(NETWORKS.read(toy / "networks.csv").contender) == {"torch", "cuconv"}
    assert program.main([*OF_ALEXNET[:-2], "cuconv"]) == 0
    assert list(ENERGY.read(toy / "energy.csv").contender) == ["torch", "cuconv"]
    assert program.main(OF_ALEXNET[1:]) == 0
    assert len(commands(toy)) == 3, "the report of energies stays beside that of the times"


def test_no_contender_is_no_energy(toy, counter, monkeypatch, capsys):
    def broken(model, images, options):
        raise RuntimeError("cannot take this")

    monkeypatch.setattr(program, "CONTENDERS", {"torch": broken, "cuconv": broken})
    assert program.main(OF_ALEXNET) == 0
    assert "No energies to compare" in capsys.readouterr().out and not (toy / "energy.csv").exists()


def test_without_a_counter_nothing_is_measured(toy, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    assert "--energy takes the package nvidia-ml-py, which is missing" in refused(capsys, *OF_ALEXNET)
    assert not toy.exists()


def test_a_dry_run_says_that_energy_is_measured(capsys):
    assert program.main([*OF_ALEXNET, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("= 4 rows, and 2 energies\n")


@pytest.mark.parametrize(("option", "file"), [("--energy", "energy.csv"), ("--breakdown", "breakdown.csv")])
def test_a_contender_that_fails_loses_its_older_rows(toy, counter, monkeypatch, option, file):
    monkeypatch.setattr(profiler, "kernels", lambda call, calls: [("fp16x3", 3.0)] * calls)
    arguments = [option, *OF_ALEXNET[1:]]
    assert program.main([*arguments, "--net", "alexnet", "vgg19"]) == 0
    before = (toy / file).read_text().splitlines()

    def fails(model, images, precision):
        raise RuntimeError("cannot take this")

    monkeypatch.setitem(program.CONTENDERS, "cuconv", fails)
    assert program.main(arguments) == (0 if option == "--energy" else 2), "the times have a row with the error"
    left = [line.split(",")[:5] for line in (toy / file).read_text().splitlines()]
    gone = [line.split(",")[:5] for line in before if line.startswith("alexnet") and ",cuconv," in line]
    assert len(gone) == 1 and [line for line in (one.split(",")[:5] for one in before) if line not in gone] == left


def test_a_breakdown_has_no_energies(capsys):
    with pytest.raises(SystemExit):
        program.main([*OF_ALEXNET, "--breakdown"])
    assert "not allowed with" in capsys.readouterr().err


def test_each_precision_has_a_process_of_its_own_and_what_ends_one_has_rows_of_its_own(toy, monkeypatch):
    begun = []

    class Ends(isolation.Worker):
        """The contender cuconv ends the process that measures it."""

        def __init__(self, begin, say):
            super().__init__(begin, say)
            begun.append(begin.args[1])
            measure = self.measure

            def ending(task):
                for event in measure(task):
                    if event == Begins("cuconv"):
                        raise isolation.WorkerEnded("error", "its process was ended", event)
                    yield event

            self.measure = ending

    monkeypatch.setattr(isolation, "Worker", Ends)
    arguments = ["--net", "alexnet", "vgg19", "--batch", "1", "--contender", "torch", "cuconv"]
    assert program.main([*arguments, "--precision", "fp32", "tf32"]) == 0
    rows = NETWORKS.read(toy / "networks.csv")
    assert len(rows) == 2 * 2 * 2 * 2 and set(rows.status[rows.contender == "torch"]) == {"ok"}
    assert set(rows.detail[rows.contender == "cuconv"]) == {"its process was ended"}
    assert begun == ["fp32"] * 3 + ["tf32"] * 3, "another process after each that has ended"
