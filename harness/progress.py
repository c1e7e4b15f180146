"""The one progress bar of the harness: what is being done, how far it is, time spent and time left."""

from __future__ import annotations

from collections.abc import Iterable
from threading import RLock
from typing import Any

from tqdm import tqdm

COUNTED = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} elapsed, {remaining} left"
WEIGHED = "{desc} {percentage:3.0f}%|{bar}| {elapsed} elapsed, {remaining} left"

tqdm.set_lock(RLock())  # by default it makes a semaphore of the system too, which a process that is ended leaves behind


class _Bar(tqdm):
    """A bar that is never shown above its total, whatever rounding adds."""

    @property
    def format_dict(self) -> dict[str, Any]:
        shown = dict(super().format_dict)
        return shown if shown["total"] is None else shown | {"n": min(shown["n"], shown["total"])}


def counted(items: Iterable[Any], description: str = "", total: int | None = None) -> tqdm:
    """A bar that is iterated over and counts items; below another bar, it vanishes at its end.

    total: the number of items, where they have no length.
    """
    return _Bar(items, desc=description, total=total, bar_format=COUNTED, leave=None)


def weighed(total: float, description: str = "") -> tqdm:
    """A bar in per cent of a total, moved by `update`. Use as a context manager."""
    return _Bar(total=total, desc=description, bar_format=WEIGHED, mininterval=1)


def say(message: str) -> None:
    """Print a line above the bars that are on the screen."""
    tqdm.write(message)
