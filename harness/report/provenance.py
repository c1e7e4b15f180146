"""Where, when and with which versions some rows were measured, from environment.json alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from harness.results.comparisons import Results

Report = dict[str, Any]

OF_A_CPU = """The times in results/cpu are of a CPU: the paper's two stages in plain torch beside torch's own
convolutions. They check the harness and make no claim about cuConv, whose kernels need an NVIDIA GPU. The results of an
H200 are in results/nvidia-h200 and in README.md."""


def provenance(results: Results, rows: pd.DataFrame | None = None) -> str:
    """The GPU, the versions and the date of some rows, or of all, such as "NVIDIA H200, cuDNN 9.19.0, 2025-11-22".

    Without a readable environment.json it is the device's name under results/.
    """
    used = _reports(results, results.frame if rows is None else rows)
    parts = [_seen(used, "gpu") or _seen(used, "cpu") or results.device]
    if cudnn := _seen(used, "cudnn"):
        parts.append(f"cuDNN {_cudnn_version(cudnn)}")
    if torch := _seen(used, "torch"):
        parts.append(f"torch {torch.split('+')[0]}")
    return ", ".join([*parts, *_dates(used)])


def _reports(results: Results, rows: pd.DataFrame) -> list[Report]:
    try:
        stored = json.loads((results.folder / "environment.json").read_text())["environments"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = set(rows.environment)
    return [report for name, report in stored.items() if name in names] or list(stored.values())


def _seen(reports: Iterable[Report], key: str) -> str:
    return ", ".join(dict.fromkeys(str(report[key]) for report in reports if report.get(key) is not None))


def _cudnn_version(number: str) -> str:
    """cuDNN's version from its number, 10000 major + 100 minor + patch; other text stays as it is."""
    if not number.isdecimal():
        return number
    major, rest = divmod(int(number), 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _dates(reports: Iterable[Report]) -> list[str]:
    """The day of the commands, or the first and the last; empty where none is known."""
    commands = [command for report in reports for command in report.get("commands", [])]
    days = sorted({str(command["date"])[:10] for command in commands if command.get("date")})
    if not days:
        return []
    return [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"]
