"""How the commands of the harness end: one line on standard error, and an exit code that tells why."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cuconv.costs import CostsError
from harness.errors import GpuLost, UserError

OK, GPU_LOST, USER_ERROR, INTERRUPTED = 0, 1, 2, 130


def exit_code(command: str, work: Callable[[], None], go_on: str = "") -> int:
    """Do the work of a command and return its exit code: 0, 1 for a lost GPU, 2 for a user's mistake, 130 for Ctrl-C.

    command: its name, such as "harness.run", with which the line on standard error begins. go_on: what a user can do
    with the rows that were measured before a lost GPU or Ctrl-C; empty where nothing is kept.
    """
    then = f"; {go_on}" if go_on else ""
    try:
        work()
    except (UserError, CostsError) as error:
        return _say(f"{command}: {error}", USER_ERROR)
    except GpuLost as error:
        return _say(f"{command}: {error}{then}", GPU_LOST)
    except KeyboardInterrupt:
        kept = "; the rows so far are kept" if go_on else ""
        return _say(f"{command}: interrupted{kept}{then}", INTERRUPTED)
    return OK


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
