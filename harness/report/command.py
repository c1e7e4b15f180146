"""python -m harness report VERB: tables, figures and pages from the CSV files under results/."""

from collections.abc import Sequence

from harness.command import verb

VERBS = {
    "tables": ("harness.report.tables", "print every table, in markdown"),
    "figures": ("harness.report.figures.command", "redraw the figures"),
    "page": ("harness.report.page.command", "write one HTML file of a sweep, to sort and filter in a browser"),
    "docs": ("harness.report.pages", "rewrite the tables in README.md and docs/"),
    "repeatability": ("harness.report.repeatability", "print how far the same case moves between whole sweeps"),
}


def main(arguments: Sequence[str]) -> int:
    """Run a verb; returns its exit code."""
    return verb("harness report", VERBS, arguments)
