"""The end of the interpreter: daemon threads stop before they call into libraries that abort the process then.

At its end Python kills daemon threads where they next take its global lock. In the C++ code of torch that ends the
whole process by an abort.
"""

from __future__ import annotations

import atexit
import threading
import time
from weakref import WeakSet

GRACE_S = 0.05  # for the calls that daemon threads have begun: much longer than they take once kernels are compiled

begun = False
_daemons: WeakSet[threading.Thread] = WeakSet()  # daemon threads that have called conv2d


def watch() -> None:
    """Note that the current thread, a daemon, calls."""
    _daemons.add(threading.current_thread())


def stop_daemons() -> None:
    """Stop the current thread for good if it is a daemon; called before each call once the interpreter ends."""
    while threading.current_thread().daemon:
        time.sleep(3600)


def _begin() -> None:
    global begun
    begun = True
    if any(thread.is_alive() for thread in list(_daemons)):
        time.sleep(GRACE_S)


atexit.register(_begin)
