"""python -m harness.report page: one HTML file of a sweep, with every case and algorithm, that needs no network."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness import command
from harness.errors import ResultsError, UsageError
from harness.experiments.networks.table import networks_results
from harness.store.files import write_whole
from harness.sweep.comparisons import Results, find_results

FILE = "page.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 2 where nothing can be shown."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.report page", description="Write one HTML file of a sweep's cases and algorithms."
    )
    parser.add_argument(
        "--results", type=command.folder, default=Path("results"), help="folder of DEVICE/SWEEP/measurements.csv"
    )
    parser.add_argument(
        "--out", type=command.folder, default=Path("plots"), help=f"where DEVICE/SWEEP/{FILE} goes (default: plots)"
    )
    parser.add_argument("--device", help="only this device's results")
    parser.add_argument("--sweep", default="paper", help="the sweep (default: paper)")
    options = parser.parse_args(arguments)
    return command.exit_code("harness.report page", lambda: _write_all(options))


def _write_all(options: argparse.Namespace) -> None:
    found = [results for results in find_results(options.results, options.device, options.sweep) if results.on_gpu]
    if not found:
        raise ResultsError(
            f"only a CPU's results under {options.results}: the page shows a GPU's; "
            "'python -m harness.report tables' prints a CPU's tables"
        )
    for results in found:
        path = options.out / results.device / results.sweep / FILE
        write_whole(path, html(results))
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def html(results: Results) -> str:
    """The page of a sweep. Raises UsageError where Bokeh is missing, ResultsError where no case can be compared."""
    try:
        from bokeh.embed import file_html
        from bokeh.resources import INLINE

        from harness.report.page.view import document
    except ImportError as error:
        raise UsageError(f"the page needs Bokeh ({error}): pip install bokeh") from None
    if not results.compared.speedup.notna().any():
        raise ResultsError(f"no case of {results.csv_path} was measured by both cuConv and a rival")
    return str(file_html(document(results, networks_results(results.folder.parent)), INLINE))
