"""The benchmark: measures convolutions on this machine, and makes tables and figures of the results.

Every command is `python -m harness VERB` or `python -m harness.run`, and imports this file first. So it makes the
standard streams safe, checks that the packages are installed, and lets Ctrl-C end a command that still imports them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec

_ALL = ("numpy", "pandas", "pydantic", "yaml")
_DRAWING = ("matplotlib", "PIL")
_MEASURING = ("nvtx", "torch", "tqdm")
_COMMANDS = ("harness", "harness.run")
_STARTED = (  # by make, by who changes kernels, and by the experiment latency
    "harness.store.proof",
    "harness.tune.variants",
    "harness.experiments.latency.measure",
    "harness.experiments.latency.start",
)
# What a command imports in addition to _ALL; a command that is not here imports _MEASURING.
_BESIDE = {
    "harness report": (),
    "harness report figures": _DRAWING,
    "harness report page": ("bokeh",),
    "harness compare": ("scipy",),
    "harness tune": (*_MEASURING, "scipy"),
}


def _command() -> str:
    """The command of the harness that this process runs; empty where something else, such as a test, imports it."""
    typed = sys.orig_argv
    program, *after = typed[typed.index("-m") + 1 :] if "-m" in typed[:-1] else [""]
    if program == "harness":
        return " ".join([program, *after[: 2 if after[:1] == ["report"] else 1]])
    return program if program.partition(".")[0] == "harness" else ""


def _check_is_one(command: str) -> None:
    """End with one sentence and exit code 2 where a module is run that is no command, and would silently do nothing."""
    program = command.partition(" ")[0]
    if program not in (*_COMMANDS, *_STARTED):
        print(
            f"{program} is no command: try 'python -m {program.replace('.', ' ')}', or see 'python -m harness --help' "
            "and the new names in CHANGELOG.md",
            file=sys.stderr,
        )
        sys.exit(2)


def _needed_by(command: str) -> tuple[str, ...]:
    """The packages that a command imports in addition to _ALL, by its verbs or the first of them."""
    by_verb = _BESIDE.get(" ".join(command.split()[:2]), () if command == "harness" else _MEASURING)
    return _BESIDE.get(command, by_verb)


def _check_packages(command: str) -> None:
    """End a command with one sentence and exit code 2 where packages that it imports are missing."""
    needed = (*_ALL, *_needed_by(command))
    if missing := [name for name in needed if find_spec(name) is None]:
        print(
            f"{command}: {sys.executable} lacks {', '.join(missing)}, which the extra 'bench' installs: "
            f"run 'make bench', which does so in .venv, or {sys.executable} -m pip install -e '.[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)


def _end_by_interrupt() -> None:
    """Let Ctrl-C end the process at once, without a traceback; `command.exit_code` has it raised from then on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and is not ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _name_contender() -> None:
    """Put the file of `--contender FILE` where the registry of contenders, and processes that are started, find it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--contender", nargs="?", default="")  # the last one counts, as for the command's own parser
    file = parser.parse_known_args(sys.orig_argv)[0].contender or ""
    if file.endswith(".py"):
        os.environ["CUCONV_CONTENDER"] = os.path.abspath(file)


if _running := _command():
    from harness import streams  # here: a program that is timed imports nothing that it does not need

    streams.secure()
    _name_contender()
    _end_by_interrupt()
    _check_is_one(_running)
    _check_packages(_running)
