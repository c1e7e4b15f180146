"""python -m harness evidence: measure all that the pages show, by every GPU of this host, and draw it again.

A step is a command of the harness. Sweeps come first, each shared by all GPUs. Of the other experiments as many run at
once as there are GPUs; those that fill the same folder take turns. What a step prints goes to build/evidence/STEP.log.
A step that has ended is not run again by equal code on an equal machine: after an interruption or an error the same
command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import NamedTuple

import torch

from harness import command, progress
from harness.errors import ResultsError, UsageError
from harness.precision import BF16, FP16, FP32, TF32
from harness.store import environment
from harness.store.files import read_json, write_whole

FOLDER = environment.ROOT / "build" / "evidence"
CORES_OF_PROCESS = 2  # of a sweep: while one measures, others build cuDNN's plans on the host


class Step(NamedTuple):
    """A command of the harness.

    minutes: about how long it takes one H100. words: those after `python -m harness`. folder: the one under
    results/DEVICE that an experiment fills on a GPU of its own; "" for a sweep, which all GPUs share.
    """

    name: str
    minutes: float
    words: tuple[str, ...]
    folder: str = ""


def _sweep(config: str, precision: str, minutes: float) -> Step:
    words = ("run", "--config", config, "--precision", precision, "--resume")
    return Step(f"{config}-{precision}", minutes, words)


STEPS = (
    *(_sweep("paper", precision, minutes) for precision, minutes in ((FP32, 25), (TF32, 40), (FP16, 45), (BF16, 45))),
    *(_sweep("strided", precision, 3) for precision in (FP32, FP16)),
    *(_sweep("grouped", precision, 3) for precision in (FP32, FP16)),
    *(_sweep(config, FP32, 3) for config in ("fully_connected", "unseen")),
    *(_sweep("random", precision, 12) for precision in (FP32, FP16)),
    *(_sweep(one, FP32, 3) for one in ("vae", "super_resolution", "audio", "boards", "blur", "public")),
    Step("networks", 40, ("networks",), "networks"),
    Step("networks-kinds", 6, ("networks", "--breakdown"), "networks"),
    Step("networks-energy", 15, ("networks", "--energy"), "networks"),
    Step("latency", 12, ("latency",), "latency"),
    Step("accuracy", 5, ("accuracy",), "accuracy"),
    Step("copies", 1, ("copies",), "bandwidth"),
    Step("host", 3, ("host",), "host"),
    Step("kernels", 2, ("kernels",), "profile"),
    Step("counters", 3, ("kernels", "--counters"), "profile"),
)
DRAWING = (("report", "figures"), ("report", "page"), ("report", "docs"))


def _run(options: argparse.Namespace) -> None:
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    if unknown := sorted({*options.only} - {step.name for step in STEPS}):
        names = ", ".join(step.name for step in STEPS)
        raise UsageError(f"--only {' '.join(unknown)}: the steps are {names}")
    if options.dry_run:
        for step in chosen:
            print(f"{step.name:22} about {step.minutes:3g} min  {shlex.join(words_of(step, processes=1))}")
        return
    device = environment.current_gpu("the steps", ": '--dry-run' prints them")
    ended = Ended(FOLDER, environment.report(device, options.typed))
    left = [step for step in chosen if not ended.has(step)]
    failed = measure(left, torch.cuda.device_count(), os.cpu_count() or 1, ended.add)
    for words in DRAWING:
        subprocess.run([sys.executable, "-m", "harness", *words], cwd=environment.ROOT, check=False)
    if failed:
        logs = ", ".join(str(log_of(step)) for step in failed)
        raise ResultsError(f"{len(failed)} of {len(left)} steps failed ({logs}): the same command tries them again")


class Ended:
    """The steps that have ended, with the facts about the machine and the code: those of others do not count."""

    def __init__(self, folder: Path, facts: dict[str, object]):
        self._path, self._facts, self._lock = folder / "ended.json", facts, Lock()
        self._steps = read_json(self._path, "delete it") if self._path.exists() else {}

    def has(self, step: Step) -> bool:
        """Whether a step has ended here, by equal code."""
        return step.name in self._steps and environment.comparable(self._steps[step.name], self._facts)

    def add(self, step: Step) -> None:
        """Note that a step has ended; several threads may."""
        with self._lock:
            self._steps[step.name] = self._facts
            write_whole(self._path, json.dumps(self._steps, indent=2) + "\n")


def measure(steps: Iterable[Step], gpus: int, cores: int, ended: Callable[[Step], None]) -> list[Step]:
    """Run steps, call `ended` after each that ended well, and return the others."""
    steps, failed = list(steps), []
    FOLDER.mkdir(parents=True, exist_ok=True)
    free: Queue[int] = Queue()
    for gpu in range(gpus):
        free.put(gpu)

    def run(step: Step, words: list[str], visible: dict[str, str]) -> None:
        with log_of(step).open("w", encoding="utf-8") as log:
            done = subprocess.run(
                [sys.executable, *words[1:]], cwd=environment.ROOT, env=os.environ | visible, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        if done.returncode:
            failed.append(step)
            progress.say(f"{step.name}: exit code {done.returncode}, see {log_of(step)}")
        else:
            ended(step)
        bar.update(step.minutes)

    def in_turn(those: list[Step]) -> None:
        gpu = free.get()
        for step in those:
            run(step, words_of(step), {"CUDA_VISIBLE_DEVICES": str(gpu)})
        free.put(gpu)

    by_folder = defaultdict(list)
    for step in steps:
        by_folder[step.folder].append(step)
    with progress.weighed(sum(step.minutes for step in steps)) as bar, ThreadPoolExecutor(gpus) as pool:
        for step in by_folder.pop("", []):
            bar.set_description_str(step.name)
            run(step, words_of(step, max(gpus, cores // CORES_OF_PROCESS)), {})
        bar.set_description_str(" ".join(by_folder))
        list(pool.map(in_turn, by_folder.values()))
    return failed


def words_of(step: Step, processes: int = 0) -> list[str]:
    """The command line of a step. processes: those that share a sweep."""
    if step.folder:
        return ["python", "-m", "harness", *step.words]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return ["python", "-m", *torchrun, "-m", "harness", *step.words]


def log_of(step: Step) -> Path:
    """The file with what a step printed when it ran last."""
    return FOLDER / f"{step.name}.log"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps; --dry-run prints them")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and stop")


main = command.program(
    "harness evidence",
    "Measure all that the pages show, by every GPU of this host, and draw it again.",
    _run,
    _add_options,
    go_on="go on with the same command",
)
