"""python -m harness report page: one HTML file of a sweep, with every case and algorithm, that needs no network."""

from __future__ import annotations

import argparse
import json
from html import escape
from typing import Any

from harness import command
from harness.errors import ResultsError, UsageError
from harness.experiments.networks.table import networks_results
from harness.report.options import add_out, add_source
from harness.store.files import write_whole
from harness.sweep.comparisons import Results, find_results

FILE = "page.html"
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>{scripts}</head>
<body><div id="page"></div><script>Bokeh.embed.embed_item({item})</script></body>
</html>
"""


def _write_all(options: argparse.Namespace) -> None:
    found = [results for results in find_results(options.results, options.device, options.sweep) if results.on_gpu]
    if not found:
        raise ResultsError(
            f"only a CPU's results under {options.results}: the page shows a GPU's; "
            "'python -m harness report tables' prints a CPU's tables"
        )
    for results in found:
        path = options.out / results.device / results.sweep / FILE
        write_whole(path, html(results))
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def html(results: Results) -> str:
    """The page of a sweep. Raises UsageError where Bokeh is missing, ResultsError where no case can be compared.

    Equal results give an equal page.
    """
    try:
        from bokeh.embed import json_item
        from bokeh.resources import Resources

        from harness.report.page.view import document
    except ImportError as error:
        raise UsageError(f"the page needs Bokeh ({error}): pip install bokeh") from None
    if not results.of_subject().speedup.notna().any():
        raise ResultsError(f"no case of {results.csv_path} was measured by both cuConv and a rival")
    made = document(results, networks_results(results.folder.parent))
    title = escape(made.title)  # json_item takes it away
    numbers: dict[str, str] = {}  # by models, since Bokeh counts all of a process

    def renumbered(part: dict[str, Any]) -> dict[str, Any]:
        ids = (key for key in ("id", "root_id") if key in part)
        return part | {key: numbers.setdefault(part[key], f"p{len(numbers)}") for key in ids}

    item = json.loads(json.dumps(json_item(made.roots[0], "page")), object_hook=renumbered)
    data = json.dumps(item).replace("<", r"\u003c")  # no text of the results ends the script
    scripts = Resources("inline", components=["bokeh", "bokeh-widgets", "bokeh-tables"]).render()
    return PAGE.format(title=title, scripts=scripts, item=data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_source(parser, sweep="paper")
    add_out(parser)


main = command.program(
    "harness report page", "Write one HTML file of a sweep's cases and algorithms.", _write_all, _add_options
)
