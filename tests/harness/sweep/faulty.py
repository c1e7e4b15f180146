"""Contenders that break the process that measures them, for the tests of the supervisor, loaded in that process."""

import os
import signal
import time

import torch

from harness.contenders.base import Contender, Offer, Prepared
from harness.errors import GpuLost, UsageError
from harness.stopwatch import between
from harness.stopwatch.timing import Timing
from harness.sweep import one_case as sweep


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def out_of_memory():
    """End as the system ends a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def hang():
    time.sleep(1000)


def lose_the_gpu():
    raise RuntimeError("an illegal address")


def _after_error(what, error, device):
    """As on a GPU, where the next use of the context fails as well."""
    if "illegal address" in str(error):
        raise GpuLost(f"{what} broke the CUDA context ({error})")


class Contender(Contender):
    """An algorithm that is right and one for each of the ways to break, named after it."""

    def __init__(self, *ways, at_offers=None):
        super().__init__()
        self._ways, self._at_offers = ways, at_offers

    def offers(self, problem, operands):
        if self._at_offers:
            self._at_offers()
        right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)

        def breaking(way):
            def call():
                way()
                return right.clone()

            return call

        names = {"right": right.clone, "also_right": right.clone} | {way.__name__: breaking(way) for way in self._ways}
        return [Offer("cpu", name, lambda call=call: Prepared(call, 0)) for name, call in names.items()]


def with_every_fault(providers, precision, say):
    sweep._after_error = _after_error
    return {"cpu": Contender(crash, out_of_memory, leave, lose_the_gpu)}


def with_a_crash(providers, precision, say):
    return {"cpu": Contender(crash)}


_calls_between: list[str] = []


def crash_between():
    """Crash where other work stands between two calls, and be right elsewhere."""
    if _calls_between:
        crash()


def _measure_between(call, work, count, runs, steadily):
    """The times of a made-up GPU: 5 us separated, and 7 us cold."""
    _calls_between.append(work)
    output = call()
    _calls_between.pop()
    return Timing(({"separated": 5.0, "cold": 7.0}[work],) * runs, count, "graph", output, call)


def with_a_crash_in_the_second_pass(providers, precision, say):
    between.measure, between.work = _measure_between, lambda time, device: time
    return {"cpu": Contender(crash_between)}


def with_a_hang(providers, precision, say):
    return {"cpu": Contender(hang)}


def with_a_crash_at_the_offers(providers, precision, say):
    return {"cpu": Contender(at_offers=crash)}


def with_a_note(providers, precision, say):
    say("cpu takes part")
    return {"cpu": Contender()}


def refused(providers, precision, say):
    raise UsageError("CUBLAS_WORKSPACE_CONFIG is set: unset it")


def not_loading(providers, precision, say):
    leave()


class CrashesOnce:
    """A loader whose second process cannot start, as where the GPU itself is lost."""

    def __init__(self, mark):
        self._mark = mark

    def __call__(self, providers, precision, say):
        if self._mark.exists():
            leave()
        self._mark.touch()
        return with_a_crash(providers, precision, say)
