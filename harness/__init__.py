"""The benchmark: measures convolutions on this machine, and makes tables and figures of the results.

Every command is `python -m harness....` and imports this file first, so it checks that the packages are installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_ALL = ("numpy", "pandas", "pydantic", "yaml")
_DRAWING = ("matplotlib", "PIL")
_MEASURING = ("nvtx", "torch", "tqdm")
# What a command imports beside _ALL; the commands that are not here measure.
_BESIDE = {
    "harness.report.figures": _DRAWING,
    "harness.report.pages": _DRAWING,
    "harness.report.tables": (),
    "harness.tune": (*_MEASURING, "scipy"),
}


def _check_packages() -> None:
    """End a command of the harness with one sentence and exit code 2 where packages that it imports are missing."""
    typed = sys.orig_argv
    command = typed[typed.index("-m") + 1] if "-m" in typed[:-1] else ""
    if command.partition(".")[0] != "harness":  # imported by something else, such as the tests
        return
    needed = (*_ALL, *_BESIDE.get(command, _MEASURING))
    if missing := [name for name in needed if find_spec(name) is None]:
        print(
            f"{command}: {sys.executable} lacks {', '.join(missing)}, which the extra 'bench' installs: "
            f"run 'make bench', which does so in .venv, or {sys.executable} -m pip install -e '.[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)


_check_packages()
