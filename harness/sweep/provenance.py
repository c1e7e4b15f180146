"""Where, when and with which versions some rows were measured, from environment.json alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from harness.contenders import registry
from harness.store import environment
from harness.sweep.comparisons import Results, grouped, rivals, timed

Report = dict[str, Any]

OF_A_CPU = """The times in results/cpu are of a CPU: the paper's two stages in plain torch beside torch's own
convolutions. They check the harness and make no claim about cuConv, whose kernels need an NVIDIA GPU. The results of an
H200 are in results/nvidia-h200 and in README.md."""


def provenance(results: Results, rows: pd.DataFrame | None = None) -> str:
    """The GPU, the versions and the date of some rows, or of all, such as "NVIDIA H200, cuDNN 9.28.1, torch 2.11.0,
    2026-11-25".

    Rows of optional contenders do not count: a later command adds them to a sweep. Without a readable environment.json
    it is the device's name under results/.
    """
    rows = results.frame if rows is None else rows
    if "provider" in rows:
        rows = rows[~rows.provider.isin(registry.OPTIONAL)]
    used = _reports(results, rows)
    parts = [_seen(used, "gpu") or _seen(used, "cpu") or results.device]
    if versions := _cudnn_versions(used):
        parts.append(f"cuDNN {', '.join(versions)}")
    if torch := _seen(used, "torch"):
        parts.append(f"torch {torch.split('+')[0]}")
    return ", ".join([*parts, *_dates(used)])


def model(results: Results) -> str:
    """The GPU's model, such as "H100"."""
    return provenance(results).partition(", ")[0].removeprefix("NVIDIA ").partition(" ")[0]


def mixture(results: Results, rows: pd.DataFrame) -> str:
    """A warning where rows are of several machines, versions or codes; otherwise "".

    It names which of our algorithms, and whether the rivals, were measured otherwise than the first subject (auto on a
    GPU), if they were. Rows whose report is missing from environment.json are left out.
    """
    ours, subject = results.comparison.provider, results.subject
    group_of = _groups(environment.read(results.folder))
    known = rows[rows.environment.isin(list(group_of))]
    mine, theirs = known[known.provider == ours], rivals(known, results.comparison)
    found = {name: {group_of[name] for name in members.environment} for name, members in grouped(mine, "algorithm")}
    found[results.comparison.rivals] = {group_of[name] for name in theirs.environment}
    if len(set().union(*found.values())) <= 1:
        return ""
    provider, autos = registry.PROVIDERS[ours], found.get(subject, set())
    names = (*provider.algorithms, results.comparison.rivals)
    others = [name for name in names if found.get(name) and found[name] != autos]
    if not autos or not others:
        return f"Rows of {provider.label} are of several codes, versions or machines."
    which = "Some rows" if any(found[name] & autos for name in others) else "Rows"
    return f"{which} of {subject} are of other code, versions or machine than those of {', '.join(others)}."


def mixture_with_rivals(results: Results, ours: Iterable[str], theirs: Iterable[str]) -> str:
    """The sentence of `mixture` on the first subject in some precisions, and the rivals in some."""
    frame = results.frame
    subjects = (frame.provider == results.comparison.provider) & (frame.algorithm == results.subject)
    mine = timed(frame[subjects], *ours)
    return mixture(results, pd.concat([mine, rivals(timed(frame, *theirs), results.comparison)]))


def are_of_one_measurement(results: Results, rows: pd.DataFrame) -> bool:
    """Whether rows are of one code and one set of versions, as far as environment.json tells."""
    group_of = _groups(environment.read(results.folder))
    return len({group_of[name] for name in set(rows.environment) & group_of.keys()}) <= 1


def _groups(reports: dict[str, Report]) -> dict[str, int]:
    """A number for each report by its name in environment.json, the same number for comparable reports."""
    first: list[Report] = []
    groups = {}
    for name, report in reports.items():
        group = next((i for i, other in enumerate(first) if environment.comparable(report, other)), len(first))
        first += [report] if group == len(first) else []
        groups[name] = group
    return groups


def _reports(results: Results, rows: pd.DataFrame) -> list[Report]:
    stored = environment.read(results.folder)
    names = set(rows.environment)
    return [report for name, report in stored.items() if name in names] or list(stored.values())


def _seen(reports: Iterable[Report], key: str) -> str:
    return ", ".join(dict.fromkeys(str(report[key]) for report in reports if report.get(key) is not None))


def _cudnn_versions(reports: Iterable[Report]) -> list[str]:
    return [_cudnn_version(number) for number in _seen(reports, "cudnn").split(", ") if number]


def _cudnn_version(number: str) -> str:
    """cuDNN's version from its number, 10000 major + 100 minor + patch; other text stays as it is."""
    if not number.isdecimal():
        return number
    major, rest = divmod(int(number), 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def last_day(results: Results, rows: pd.DataFrame) -> str:
    """The last day on which a command measured some rows, such as "2026-11-25"; "" where none is known."""
    return max(_days(_reports(results, rows)), default="")


def _days(reports: Iterable[Report]) -> list[str]:
    """The days of the commands, in order."""
    commands = [command for report in reports for command in report.get("commands", [])]
    return sorted({str(command["date"])[:10] for command in commands if command.get("date")})


def _dates(reports: Iterable[Report]) -> list[str]:
    """The day of the commands, or the first and the last; empty where none is known."""
    days = _days(reports)
    if not days:
        return []
    return [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"]
