"""python -m harness.report page: one HTML file of a sweep, with every case and algorithm, that needs no network."""

from __future__ import annotations

import argparse

from harness import command
from harness.errors import ResultsError, UsageError
from harness.experiments.networks.table import networks_results
from harness.report.options import add_out, add_source
from harness.store.files import write_whole
from harness.sweep.comparisons import Results, find_results

FILE = "page.html"


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


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_source(parser, sweep="paper")
    add_out(parser)


main = command.program(
    "harness.report page", "Write one HTML file of a sweep's cases and algorithms.", _write_all, _add_options
)
