"""How the commands of the harness end: one line on standard error, and an exit code that tells why."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from cuconv.core.costs import CostsError
from harness import streams
from harness.errors import GpuLost, UserError

OK, GPU_LOST, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def program(
    name: str,
    description: str,
    work: Callable[[argparse.Namespace], int | None],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    go_on: str = "",
) -> Callable[..., int]:
    """The `main` of a command: it parses arguments, does the work, and returns the exit code as `exit_code` does.

    name: such as "harness report tables". work takes the options, whose `typed` is the command line, and may return an
    exit code of its own.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description, allow_abbrev=False)
        add_options(parser)
        options = parser.parse_args(arguments)
        options.typed = line(name, arguments)
        return exit_code(name, lambda: work(options), go_on)

    return main


def line(name: str, arguments: Sequence[str] | None) -> str:
    """The command line of a command, such as "harness report tables", as a user types it.

    arguments: those after its name; None for those of this process.
    """
    return shlex.join(["python", "-m", *name.split(), *(sys.argv[1:] if arguments is None else arguments)])


def exit_code(command: str, work: Callable[[], int | None], go_on: str = "") -> int:
    """Do the work of a command and return its exit code.

    It is what the work returns, or 0, 1 for a lost GPU, 2 for a user's mistake, 130 for Ctrl-C, 141 where the reader
    of the output is gone.

    command: its name, such as "harness.run", with which the line on standard error begins. go_on: what a user can do
    with the rows that were measured before a lost GPU or Ctrl-C; empty where nothing is kept.
    """
    then = f"; the rows so far are kept; {go_on}" if go_on else ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # until now Ctrl-C ended the process (harness/__init__.py)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = work() or OK
        sys.stdout.flush()  # here, not at the interpreter's exit, so that a broken pipe is seen
    except (UserError, CostsError) as error:
        return _say(f"{command}: {error}", USER_ERROR)
    except GpuLost as error:
        return _say(f"{command}: {error}{then}", GPU_LOST)
    except KeyboardInterrupt:
        return _say(f"{command}: interrupted{then}", INTERRUPTED)
    except BrokenPipeError:
        # The recipe of Python's page on SIGPIPE: what is still to be written at the exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if why := streams.lost_output():
        return _say(f"{command}: cannot write its output ({why}): free some space or name another file", USER_ERROR)
    return code


def verb(program: str, verbs: Mapping[str, tuple[str, str]], arguments: Sequence[str]) -> int:
    """Run a verb of a program and return its exit code.

    verbs: the module of each, whose `main` takes the arguments after the verb, and a line about it.
    """
    lines = "\n".join(f"  {name:15}{line}" for name, (_, line) in verbs.items())
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        usage="%(prog)s VERB ...",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"verbs, each with a --help of its own:\n{lines}",
    )
    parser.add_argument("verb", choices=verbs, metavar="VERB", help=argparse.SUPPRESS)
    if not arguments:
        parser.print_help(sys.stderr)
        return USER_ERROR
    module, _ = verbs[parser.parse_args(arguments[:1]).verb]
    code: int = import_module(module).main(arguments[1:])
    return code


def folder(text: str) -> Path:
    """The value of an option that names a folder; argparse tells where it is empty, which would be this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name a folder")
    return Path(text)


def _say(message: str, code: int) -> int:
    """Print a message as one line, whatever the values in it are, and return the exit code."""
    print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message), file=sys.stderr)
    return code
