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

from harness import command, progress
from harness.isolation import Measure, WorkerEnded, rows_of_cases
from harness.store import environment
from harness.store.environment import EnvironmentFile
from harness.store.locked_folder import LockedFolder
from harness.store.table import Cleared, StoredRows, Table

Options = argparse.Namespace
Loop = Callable[[Options, Sequence[Any]], Iterator[list[Any]]]


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
        parser.add_argument("--dry-run", action="store_true", help="print what would be measured and stop")
        if self.groups:
            told = "leave out what this machine, versions and code have measured already"
            parser.add_argument("--resume", action="store_true", help=told)

    def _run(self, options: Options) -> None:
        cases = self.cases(options)
        if options.dry_run:
            print(self.plan(options, cases))
            return
        device = environment.current_gpu(self.what, ": '--dry-run' prints what would be measured")
        self.check(options, cases)
        name = self.folder(options) if self.folder else self.tables[0].folder
        with LockedFolder(options.out or environment.results_folder(name)) as folder:
            rows, environments = StoredRows(folder, self.tables), EnvironmentFile(folder.path, folder.write)
            before = set(environments.environments)
            entered = environments.enter({**environment.report(device, options.typed), **self.facts()})
            if self.groups and options.resume:
                measured = rows.measured(environments.alike(entered))
                cases = [case for case in cases if not measured.issuperset(self.groups(options, case))]
            try:
                for found in (self.loop or self._isolated)(options, cases):
                    rows.add(found, entered)
                rows.end()
            finally:
                environments.keep(rows.environments(before, entered))
        print(self.summary(options, folder.path))

    def _isolated(self, options: Options, cases: Sequence[Any]) -> Iterator[list[Any]]:
        """The rows of each case, in processes that may end."""
        assert self.begin is not None, "an experiment has either a loop or what begins a process"
        with progress.counted(cases) as bar:
            begin, failed = partial(self.begin, options), partial(self.failed, options)
            rows = rows_of_cases(_shown(bar), begin, failed, self.process)
            for found, case in zip(rows, cases, strict=True):
                yield [*self.clears(options, case), *found]


def _shown(bar: Any) -> Iterator[Any]:
    """The cases of a bar, which shows each while it is measured."""
    for case in bar:
        bar.set_description_str(str(case))
        yield case
