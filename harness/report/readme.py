"""The results in the README: where and when they were measured, the headline tables, the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from harness.results import records
from harness import registry as roster
from harness.results.comparisons import Results, compare
from harness.report.headline import headlines

README_BEGIN, README_END = "<!-- results:begin -->", "<!-- results:end -->"


def readme_section(result: Results, plots: str) -> str:
    """What the README says of one results folder: where and when, the headline tables, the figures under `plots`."""
    frame, who = records.read(result.csv_path), roster.comparison(result.device)
    parts = [f"### {result.device}, sweep {result.sweep}", _provenance(result, frame), headlines(frame, result.device)]
    table, subject = compare(frame, result.device), who.subjects[0]
    figures = [
        (f"{roster.shown(who.provider, subject)}, {k}x{k} filters", f"speedup_{subject}_{k}x{k}")
        for k in sorted(table[table.subject == subject].k.unique())
    ]
    figures.append(("which algorithm wins where", "winners"))
    parts += [f"![{text}]({plots}/{result.device}/{result.sweep}/{file}.png)" for text, file in figures]
    return "\n\n".join(parts)


def _provenance(result: Results, frame: pd.DataFrame) -> str:
    """One sentence from environment.json on the rows of the frame: device, versions, commit and dates."""
    try:
        stored = json.loads((result.csv_path.parent / "environment.json").read_text()).get("environments", {})
    except (OSError, ValueError):
        stored = {}
    used = [facts for name, facts in stored.items() if name in set(frame.environment.astype(str))] or [*stored.values()]

    def seen(key: str) -> str:
        return ", ".join(dict.fromkeys(str(facts[key]) for facts in used if facts.get(key) is not None))

    dates = sorted(str(d)[:10] for facts in used for d in [facts.get("date"), *_command_dates(facts)] if d)
    when = "" if not dates else f" on {dates[0]}" if dates[0] == dates[-1] else f" from {dates[0]} to {dates[-1]}"
    labels = {"driver": "driver", "cudnn": "cuDNN", "torch": "torch", "commit": "commit"}
    versions = "".join(f", {label} {seen(key)}" for key, label in labels.items() if seen(key))
    return f"Measured{when} on {seen('gpu') or seen('cpu') or result.device}{versions}."


def _command_dates(facts: dict) -> list:
    return [command.get("date") for command in facts.get("commands", [])]


def rewrite_readme(readme: Path, text: str) -> None:
    """Replace what stands between the markers of a README; ResultsError where there are none."""
    try:
        before, begin, rest = readme.read_text().partition(README_BEGIN)
    except OSError as error:
        raise records.ResultsError(f"cannot read {readme} ({error.strerror}): name the README to rewrite") from None
    _, end, after = rest.partition(README_END)
    if not begin or not end:
        raise records.ResultsError(f"{readme} lacks the lines {README_BEGIN} and {README_END}: add them")
    readme.write_text(f"{before}{README_BEGIN}\n{text}\n{README_END}{after}")
