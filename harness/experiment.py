"""An experiment of the benchmark: what it measures, in processes that may end, and the one loop that keeps its rows.

`python -m harness NAME` runs an experiment. Its rows go to a CSV file in results/DEVICE/FOLDER, and environment.json is
next to them. A call that breaks its CUDA context, hangs or ends its process gets the rows of the experiment's `failed`.
The other rows of the case are measured again. Where a case lacks rows, the exit code is 2, and a file that is written
whole stays as it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import command, progress
from harness.errors import UsageError
from harness.isolation import Measure, WorkerEnded, rows_of_cases
from harness.store import environment
from harness.store.environment import EnvironmentFile
from harness.store.locked_folder import LockedFolder
from harness.store.table import Cleared, StoredRows, Table

Options = argparse.Namespace
Loop = Callable[[Options, Sequence[Any]], Iterator[list[Any]]]
Found = Iterator[tuple[str, list[Any]]]  # the GPU of rows, "" for the current one, and the rows


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    name       the verb of `python -m harness`
    about      a line for --help
    what       the plural that is measured, for messages
    tables     the files of its rows; each row goes to the first table that has rows of its type and takes it
    cases      the cases of a command line, which it checks. Each prints as a few words
    begin      called in a process, with the options and the key of the process. Returns a function of a pair
               (case, set of `Begins` to leave out), which yields Begins, Note, Lacks, and rows
    failed     the rows of what ended a process, of the options, the case and the `WorkerEnded`. None by default: then
               the case lacks rows
    clears     the groups of rows that a case removes where an error leaves it without new ones
    groups     the dataclass and the key of each group of rows that a case measures: it gives the command --resume,
               which leaves out the cases whose groups an equal machine has measured with equal code. None: no --resume
    process    the key of the process that a case is measured in
    shared     whether several GPUs may share the cases: it gives the command --gpus
    loop       replaces `begin`, for an experiment that starts processes of its own: yields lists of rows
    check      raises UserError for what this machine lacks, after the GPU and before the first case
    folder     the folder under results/DEVICE, where it is not that of the tables
    plan       what --dry-run prints
    summary    what is printed at the end, of the options and the folder
    add_options
               adds the command's own options to --out and --dry-run
    facts      what environment.json has besides the facts about machine, libraries and code
    go_on      what a user can do after an interruption
    """

    name: str
    about: str
    what: str
    tables: Sequence[Table]
    cases: Callable[[Options], Sequence[Any]]
    summary: Callable[[Options, Path], str]
    begin: Callable[[Options, Hashable], Measure] | None = None
    failed: Callable[[Options, Any, WorkerEnded], Iterable[Any]] = lambda options, case, end: ()
    clears: Callable[[Options, Any], Iterable[Cleared]] = lambda options, case: ()
    groups: Callable[[Options, Any], Iterable[tuple[type, tuple[str, ...]]]] | None = None
    process: Callable[[Any], Hashable] = lambda case: None
    shared: bool = False
    loop: Loop | None = None
    check: Callable[[Options, Sequence[Any]], None] = lambda options, cases: None
    folder: Callable[[Options], str] | None = None
    plan: Callable[[Options, Sequence[Any]], str] = lambda options, cases: "\n".join(map(str, cases))
    facts: Callable[[], dict[str, Any]] = dict
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    go_on: str = ""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command line; returns the exit code, as `command.exit_code` does."""
        name = f"harness {self.name}"
        return command.program(name, self.about, self._run, self._add_options, self.go_on)(arguments)

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        self.add_options(parser)
        folder = self.tables[0].folder
        parser.add_argument("--out", type=command.folder, help=f"results folder (default: results/DEVICE/{folder})")
        parser.add_argument(
            "--dry-run", action="store_true", help="print the cases, also what --resume would leave out, and stop"
        )
        if self.groups:
            told = "leave out what this machine, versions and code have measured already"
            parser.add_argument("--resume", action="store_true", help=told)
        if self.shared:
            told = f"share the {self.what} among so many GPUs, of those in CUDA_VISIBLE_DEVICES (default: 1)"
            parser.add_argument("--gpus", type=int, default=1, metavar="N", help=told)

    def _run(self, options: Options) -> None:
        cases = self.cases(options)
        if options.dry_run:
            print(self.plan(options, cases))
            return
        gpu = environment.current_gpu(self.what, ": '--dry-run' prints what would be measured")
        devices = _devices(options.gpus) if self.shared and options.gpus != 1 else {"": gpu}
        self.check(options, cases)
        name = self.folder(options) if self.folder else self.tables[0].folder
        with LockedFolder(options.out or environment.results_folder(name)) as folder:
            rows, environments = StoredRows(folder, self.tables), EnvironmentFile(folder.path, folder.write)
            before = set(environments.environments)
            facts = self.facts()
            entered = {
                name: environments.enter({**environment.report(device, options.typed), **facts})
                for name, device in devices.items()
            }
            if self.groups and options.resume:
                measured = rows.measured(environments.alike(next(iter(entered.values()))))
                cases = [case for case in cases if not measured.issuperset(self.groups(options, case))]
            try:
                for name, found in self._found(options, cases, list(devices)):
                    rows.add(found, entered[name])
                rows.end()
            finally:
                environments.keep(rows.environments(before, set(entered.values())))
        print(self.summary(options, folder.path))

    def _found(self, options: Options, cases: Sequence[Any], gpus: Sequence[str]) -> Found:
        """The rows of each case, in processes that may end, or those of the experiment's own loop."""
        if self.loop:
            yield from (("", found) for found in self.loop(options, cases))
            return
        assert self.begin is not None, "an experiment has either a loop or what begins a process"
        with progress.counted(cases) as bar:
            begin, failed = partial(self.begin, options), partial(self.failed, options)
            for case, gpu, found in rows_of_cases(_shown(bar), begin, failed, self.process, gpus):
                yield gpu, [*self.clears(options, case), *found]


def _devices(count: int) -> dict[str, torch.device]:
    """The first so many GPUs of this process, by the names that CUDA_VISIBLE_DEVICES has for them."""
    names = environment.visible_gpus()
    if not 1 <= count <= len(names):
        raise UsageError(f"--gpus {count}: must be from 1 to {len(names)}, the number of GPUs that torch sees")
    return {name: torch.device("cuda", place) for place, name in enumerate(names[:count])}


def _shown(bar: Any) -> Iterator[Any]:
    """The cases of a bar, which shows each while it is measured."""
    for case in bar:
        bar.set_description_str(str(case))
        yield case
