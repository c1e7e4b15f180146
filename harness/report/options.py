"""The options of `harness.report` that say which results are shown, and where files go."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import command


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add --results."""
    parser.add_argument(
        "--results", type=command.folder, default=Path("results"), help="folder of DEVICE/SWEEP/measurements.csv"
    )


def add_source(parser: argparse.ArgumentParser, sweep: str | None = None) -> None:
    """Add --results, --device and --sweep, the arguments of `find_results`; sweep: its default, None for all."""
    add_results(parser)
    parser.add_argument("--device", help="only this device's results")
    parser.add_argument("--sweep", default=sweep, help=f"only this sweep's results (default: {sweep or 'all'})")


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out."""
    parser.add_argument(
        "--out", type=command.folder, default=Path("plots"), help="where DEVICE/SWEEP/ goes (default: plots)"
    )
