"""python -m harness evidence: measure what the pages show, by every GPU of this host, and draw it again.

A step is a command of the harness. Sweeps and whole networks come first, each shared by all GPUs; `--resume` knows what
they lack. Of the other experiments as many run at once as there are GPUs; those that fill the same folder take turns.
`latency` and `host` time the host, so they are alone. An experiment that has ended is not run again by equal code on an
equal machine. What a step prints goes to build/evidence/STEP.log.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from threading import Event, Lock
from typing import NamedTuple

from harness import command, progress
from harness.errors import ResultsError, UsageError
from harness.experiments.networks.models import MODERN
from harness.experiments.networks.rows import CUCONV, TORCH_CONTENDERS
from harness.precision import BF16, FP16, FP32, TF32
from harness.store import environment
from harness.store.files import read_json, write_whole

FOLDER = environment.ROOT / "build" / "evidence"
CORES_OF_PROCESS = 2  # a sweep's: while one measures, others build cuDNN's plans on the host
MOST_PROCESSES = 8  # a sweep's, for each GPU: each process has a CUDA context


class Step(NamedTuple):
    """A command of the harness.

    minutes  about how long it takes one H100
    words    those after `python -m harness`
    folder   the one under results/DEVICE that an experiment fills; "" for a sweep
    shared   whether all GPUs share it; otherwise it has a GPU of its own
    alone    whether nothing else may use the host meanwhile
    """

    name: str
    minutes: float
    words: tuple[str, ...]
    folder: str = ""
    shared: bool = False
    alone: bool = False


def _sweep(config: str, precision: str, minutes: float) -> Step:
    words = ("run", "--config", config, "--precision", precision, "--resume")
    return Step(f"{config}-{precision}", minutes, words, shared=True)


def _networks(name: str, minutes: float, *words: str) -> Step:
    return Step(name, minutes, ("networks", *words), "networks", shared=True)


# Without torch_fastest_engines, which takes some minutes to prepare each of them.
MODERN_CONTENDERS = (*TORCH_CONTENDERS, CUCONV)
MODERN_NETWORKS = (
    "--resume", "--net", *MODERN, "--batch", "1", "8", "--precision", FP32, FP16,
    "--contender", *MODERN_CONTENDERS,
)  # fmt: skip
STEPS = (
    *(_sweep("paper", precision, minutes) for precision, minutes in ((FP32, 40), (TF32, 40), (FP16, 45), (BF16, 45))),
    *(_sweep("strided", precision, 3) for precision in (FP32, FP16)),
    *(_sweep("grouped", precision, 3) for precision in (FP32, FP16)),
    *(_sweep(config, FP32, 3) for config in ("fully_connected", "unseen")),
    *(_sweep("random", precision, 12) for precision in (FP32, FP16)),
    *(_sweep(one, FP32, 3) for one in ("vae", "super_resolution", "audio", "boards", "blur", "public")),
    *(_sweep("bias_relu", precision, minutes) for precision, minutes in ((FP32, 11), (TF32, 17), (FP16, 19))),
    *(_sweep("bias_add_relu", precision, 3) for precision in (FP32, TF32, FP16)),
    _networks("networks", 60, "--energy", "--resume"),
    _networks("networks-modern", 60, *MODERN_NETWORKS),
    _networks("networks-kinds", 1, "--breakdown", "--net", "resnet50", "--batch", "1", "--precision", FP32),
    Step("accuracy", 5, ("accuracy",), "accuracy"),
    Step("copies", 1, ("copies",), "bandwidth"),
    Step("conditions", 5, ("conditions",), "conditions"),
    Step("kernels", 2, ("kernels",), "profile"),
    Step("counters", 3, ("kernels", "--counters"), "profile"),
    Step("latency", 12, ("latency",), "latency", alone=True),
    Step("host", 3, ("host",), "host", alone=True),
)
DRAWING = (("report", "figures"), ("report", "page"), ("report", "docs"))


def _run(options: argparse.Namespace) -> None:
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    if unknown := sorted({*options.only} - {step.name for step in STEPS}):
        names = ", ".join(step.name for step in STEPS)
        raise UsageError(f"--only {' '.join(unknown)}: the steps are {names}")
    if options.dry_run:
        for step in chosen:
            print(f"{step.name:22} about {step.minutes:3g} min  {shlex.join(['python', '-m', 'harness', *step.words])}")
        return
    device = environment.current_gpu("the steps", ": '--dry-run' prints them")
    ended = Ended(FOLDER, environment.report(device, options.typed), environment.device_slug(device))
    failed = measure(
        [step for step in chosen if not ended.has(step)],
        environment.visible_gpus(),
        len(os.sched_getaffinity(0)),
        ended,
    )
    failed += [" ".join(words) for words in DRAWING if _start(["-m", "harness", *words])]
    if failed:
        raise ResultsError(f"failed: {', '.join(failed)} (see {FOLDER}): the same command tries them again")


class Ended:
    """The experiments that have ended, with the facts about machine and code: those of others do not count."""

    def __init__(self, folder: Path, facts: dict[str, object], device: str):
        """device: its name under results/."""
        self._path, self._facts, self.device, self._lock = folder / "ended.json", facts, device, Lock()
        self._steps = read_json(self._path, "delete it") if self._path.exists() else {}

    def has(self, step: Step) -> bool:
        """Whether an experiment has ended here, by equal code, and its folder is there."""
        there = (environment.ROOT / "results" / self.device / step.folder).is_dir()
        return there and step.name in self._steps and environment.comparable(self._steps[step.name], self._of(step))

    def add(self, step: Step) -> None:
        """Note that an experiment has ended; several threads may. Sweeps are not noted."""
        if not step.folder:
            return
        with self._lock:
            self._steps[step.name] = self._of(step)
            write_whole(self._path, json.dumps(self._steps, indent=2) + "\n")

    def _of(self, step: Step) -> dict[str, object]:
        return {**self._facts, "words": [*step.words]}


def measure(steps: Sequence[Step], gpus: Sequence[str], cores: int, ended: Ended) -> list[str]:
    """Run steps on GPUs, as CUDA_VISIBLE_DEVICES names them; returns the names of those that failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    processes = min(MOST_PROCESSES * len(gpus), max(len(gpus), cores // CORES_OF_PROCESS))
    failed: list[str] = []
    interrupted = Event()
    free: Queue[str] = Queue()
    for gpu in gpus:
        free.put(gpu)

    def run(step: Step, gpu: str = "") -> None:
        if code := _start(command_of(step, processes, len(gpus))[1:], log_of(step), gpu):
            failed.append(step.name)
            progress.say(f"{step.name}: exit code {code}, see {log_of(step)}")
        else:
            ended.add(step)
        bar.update(step.minutes)

    def in_turn(those: Sequence[Step]) -> None:
        gpu = free.get()
        try:
            for step in those:
                if not interrupted.is_set():
                    run(step, gpu)
        finally:
            free.put(gpu)

    by_folder = defaultdict(list)
    for step in steps:
        if not step.shared and not step.alone:
            by_folder[step.folder].append(step)
    with progress.weighed(sum(step.minutes for step in steps)) as bar:
        for step in steps:
            if step.shared:
                bar.set_description_str(step.name)
                run(step)
        bar.set_description_str("experiments")
        with ThreadPoolExecutor(len(gpus)) as pool:
            try:
                list(pool.map(in_turn, by_folder.values()))
            except BaseException:  # Ctrl-C, which has ended the commands that run, too
                interrupted.set()
                raise
        for step in steps:
            if step.alone:
                bar.set_description_str(step.name)
                run(step, gpus[0])
    return failed


def command_of(step: Step, processes: int, gpus: int) -> list[str]:
    """The command line of a step. processes: those that share a sweep. gpus: those that share an experiment."""
    if step.folder:
        return ["python", "-m", "harness", *step.words, *(["--gpus", str(gpus)] if step.shared else [])]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return ["python", "-m", *torchrun, "-m", "harness", *step.words]


def log_of(step: Step) -> Path:
    """The file with what a step printed when it ran last."""
    return FOLDER / f"{step.name}.log"


def _start(words: Sequence[str], log: Path | None = None, gpu: str = "") -> int:
    """Run Python with these words in the project's folder; returns the exit code. gpu: the only one that it sees."""
    variables = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    with log.open("w", encoding="utf-8") if log else nullcontext() as file:
        done = subprocess.run(
            [sys.executable, *words], cwd=environment.ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT if log else None, check=False,
        )  # fmt: skip
    return done.returncode


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps; --dry-run prints them")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and stop")


main = command.program(
    "harness evidence",
    "Measure what the pages show, by every GPU of this host, and draw it again.",
    _run,
    _add_options,
    go_on="go on with the same command",
)
