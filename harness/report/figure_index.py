"""The table of all figures: a row for each PNG of plots/DEVICE/SWEEP, with a sentence that says what it shows."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import ResultsError
from harness.store.markdown import markdown

OF_ONE_MACHINE = ("cpu/", "-against-best/")  # parts of the paths of figures that are not committed
SHOWN = {
    r"overview": "A dot for the speedup of `auto` over the best cuDNN on each case.",
    r"map": "The speedup of `auto` over the best cuDNN as numbers: a row for each layer, a column for each batch size.",
    r"rivals": "The fastest cuDNN algorithm of each case as a colour, and the speedup of `auto` over it.",
    r"floor": "The share of its floor that `auto` reaches on each case in FP32, framed where cuDNN reaches more.",
    r"floor_(\w+)": r"The share of its floor that cuConv reaches on each case in `\1`, channels last, framed alike.",
    r"speedup_(\w+)_(\d+x\d+)": r"The speedup of `\1` over the best cuDNN on \2 filters, at the paper's batch sizes.",
    r"planes": "The speedup of `auto` over the best cuDNN, and its regret, by plane and filter size.",
    r"networks": "The speedup of cuConv, and of torch's fastest ways, over the baseline that the title names.",
}


def figures_table(plots: Path, link: str) -> str:
    """The table of the figures in a folder of plots, or a sentence where there is none.

    link: the folder as the page's links name it. Raises ResultsError for a figure without an entry in SHOWN.
    """
    paths = [path.relative_to(plots) for path in sorted(plots.glob("*/*/*.png"))]
    paths = [path for path in paths if not any(part in path.as_posix() for part in OF_ONE_MACHINE)]
    if not paths:
        return f"{plots.name}/ has no figure: run 'python -m harness report figures'."
    rows = [
        (path.parts[0], path.parts[1], f"[{path.stem}]({link}/{path.as_posix()})", _sentence(path)) for path in paths
    ]
    return markdown(["device", "sweep", "figure", "what it shows"], rows, left=range(4))


def _sentence(path: Path) -> str:
    for pattern, sentence in SHOWN.items():
        if found := re.fullmatch(pattern, path.stem):
            return found.expand(sentence)
    raise ResultsError(f"no sentence says what {path} shows: remove the file, or add one to SHOWN in {__name__}")
