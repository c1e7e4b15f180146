"""A sweep measured into its results folder: by this process alone, or together with others that torchrun started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cases.catalogue import Sweep
from harness.store.environment import OWN_FACT, EnvironmentFile, comparable
from harness.sweep import resume as resuming
from harness.sweep import supervisor
from harness.sweep.hosts import Group, SharedWork, Writer
from harness.sweep.one_case import Options
from harness.sweep.records import ResultsFolder
from harness.sweep.rivals import Entrants
from harness.sweep.work import Choice, OwnWork


def measure(
    sweep: Sweep,
    options: Options,
    facts: dict[str, Any],
    out: Path,
    *,
    resume: bool = False,
    entrants: Entrants | None = None,
    group: Group | None = None,
) -> bool:
    """Measure a sweep into the folder `out`; returns whether it was this process that wrote there.

    facts: the report of this process's environment. resume: keep the rows of an equal environment. entrants: the rivals
    of each case that take part, None for all. In a group the first process writes. Raises GpuLost and ResultsError.
    """
    problems = [case.problem for case in sweep.cases]
    if group and group.rank > 0:
        supervisor.run(problems, SharedWork(group, sweep.cases, options.device_slug, facts), options)
        return False
    with ResultsFolder(out) as folder:
        environments = EnvironmentFile(folder.path, folder.write)
        done = _done(folder, environments, facts, options) if resume else {}
        environments.enter(facts)
        choice = Choice(done, entrants)
        try:
            if group:
                with Writer(group, sweep, choice, options.device_slug, folder, environments):
                    supervisor.run(problems, SharedWork(group, sweep.cases, options.device_slug, facts), options)
            else:
                supervisor.run(problems, OwnWork(sweep, choice, folder), options)
        finally:
            environments.keep({row["environment"] for row in folder.rows.values()})
    return True


def _done(
    folder: ResultsFolder, environments: EnvironmentFile, facts: dict[str, Any], options: Options
) -> resuming.Done:
    """The algorithms of each case that an equal machine, with equal versions and code, has measured."""
    same = {name: other for name, other in environments.environments.items() if comparable(facts, other)}
    of_own = {name for name, other in same.items() if other.get(OWN_FACT) == facts.get(OWN_FACT)}
    return resuming.done(folder, same, of_own, options.precision, options.device_slug, options.other_times)
