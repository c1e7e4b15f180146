"""The options of `harness report` that say which results are shown, and where files go."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import command
from harness.contenders.registry import PROVIDERS, names_of, own_contender
from harness.precision import FP32


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


def add_subject(parser: argparse.ArgumentParser) -> None:
    """Add --subject, as a pair (provider, algorithm), and --contender, which `harness` reads before all imports."""
    parser.add_argument(
        "--contender", type=own_contender, metavar="FILE", help="the contender of one's own that was measured"
    )
    parser.add_argument(
        "--subject", type=_subject, metavar="PROVIDER/ALGORITHM",
        help="what is compared with the rivals, such as cublas/bmm (default: cuconv/auto and the paper's algorithm)",
    )  # fmt: skip


def _subject(text: str) -> tuple[str, str]:
    provider, _, algorithm = text.partition("/")
    if provider not in PROVIDERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no PROVIDER/ALGORITHM: the providers are {', '.join(PROVIDERS)}")
    if not PROVIDERS[provider].may_have(algorithm, FP32):
        raise argparse.ArgumentTypeError(f"{text!r} is no PROVIDER/ALGORITHM: {names_of([provider], FP32)}")
    return provider, algorithm


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out."""
    parser.add_argument(
        "--out", type=command.folder, default=Path("plots"), help="where DEVICE/SWEEP/ goes (default: plots)"
    )
