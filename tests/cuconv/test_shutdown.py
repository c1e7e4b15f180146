"""Daemon threads at the end of the interpreter."""

import subprocess
import sys

from cuconv.runtime import shutdown

PROGRAM = """
import threading, time
from cuconv.runtime import shutdown

def calls():
    shutdown.watch()
    while True:
        if shutdown.begun:
            shutdown.stop_daemons()

for _ in range(4):
    threading.Thread(target=calls, daemon=True).start()
time.sleep(0.05)
print("end")
"""


def test_daemon_threads_do_not_keep_the_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_other_threads_go_on():
    shutdown.stop_daemons()  # this is the main thread
