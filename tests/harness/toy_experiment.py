"""An experiment for the tests of the loop: cases that are right, and cases of which a contender ends its process."""

import os
import signal
import time
from dataclasses import dataclass

from harness.errors import GpuLost, UsageError
from harness.experiment import Experiment
from harness.isolation import Begins, Note
from harness.store.table import Table


@dataclass(frozen=True)
class Timed:
    """A row of a table with keys."""

    case: int
    contender: str
    status: str
    detail: str = ""
    us: float | None = None
    environment: str = ""


@dataclass(frozen=True)
class Counted:
    """A row of a table without keys."""

    case: int
    calls: float


TIMED = Table("toy", "timed.csv", Timed, "harness toy", keys=("case", "contender"))
COUNTED = Table("toy", "counted.csv", Counted, "harness toy")
CONTENDERS = ("right", "other")


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def real_time_signal():
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


def hang():
    time.sleep(1000)


def lose_the_gpu():
    raise GpuLost("an illegal address")


def refuse():
    raise UsageError("no counter: use another GPU")


def bug():
    raise ValueError("seven is not allowed\nbut eight is")


def interrupt():
    raise KeyboardInterrupt


FAULTS = {fault.__name__: fault for fault in (segfault, real_time_signal, hang, lose_the_gpu, refuse, bug, interrupt)}


def begin(options, process):
    """A case with a fault names it: "other" has it in case 2, and what all share in case 3."""
    if options.start:
        FAULTS[options.start]()

    def measure(task):
        case, broken = task
        yield Begins()
        if case == 3 and options.shared:
            FAULTS[options.shared]()
        for contender in CONTENDERS:
            if Begins(contender) in broken:
                continue
            yield Begins(contender)
            if case == 2 and contender == "other" and options.fault:
                FAULTS[options.fault]()
            yield Timed(case, contender, "ok", us=float(case), detail=str(os.getpid()))
        yield Note(f"case {case} is measured")
        yield Counted(case, 7.0)

    return measure


def failed(options, case, end):
    for contender in [end.begun.provider] if end.begun.provider else CONTENDERS:
        yield Timed(case, contender, end.status, str(end))


def groups(options, case):
    return [(Timed, (str(case), contender)) for contender in CONTENDERS]


def add_options(parser):
    parser.add_argument("--cases", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--fault")
    parser.add_argument("--shared")
    parser.add_argument("--start")


def experiment(**changes):
    parts = dict(
        name="toy", about="A toy.", what="toys", tables=(TIMED, COUNTED), cases=lambda options: options.cases,
        begin=begin, failed=failed, groups=groups, process=lambda case: case > 2,
        add_options=add_options,
        summary=lambda options, folder: f"results: {folder}", facts=lambda: {"toys": "1.0"}, go_on="measure the rest",
    )  # fmt: skip
    return Experiment(**(parts | changes))
