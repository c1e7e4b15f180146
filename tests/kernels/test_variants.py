"""The closed set of kernel variants for every architecture, compiled on all cores; `make test` compiles only a few.

Variants for prepared weights differ from the others in few lines, so every fourth of them stands for all.
"""

import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common.listed import PREPARED
from cuconv.core.launch import KernelVariant
from cuconv.resources import ARCHITECTURES
from cuconv.runtime import compiler
from tests.cuconv.compilers import checks_registers

SECONDS_BETWEEN_LINES = 30
PREPARED_STEP = 4
PACKING_KERNEL = "pack_weights"  # has shared memory of its own, which configurations do not count
KINDS = [(name, arch) for name, algorithm in ALGORITHMS.items() for arch in ARCHITECTURES if algorithm.variants(arch)]
each_kind = pytest.mark.parametrize(("name", "arch"), KINDS)


def compiled(name, arch):
    """The macros of the variants that are compiled."""
    variants = ALGORITHMS[name].variants(arch)
    prepared = [macros for macros in variants if PREPARED in macros]
    return [macros for macros in variants if PREPARED not in macros] + prepared[::PREPARED_STEP]


@pytest.fixture(scope="module")
def jobs(request):
    """The (macros, report to come) of the kernel variants of all selected tests, by algorithm and architecture."""
    selected = [item.callspec.params for item in request.session.items if item.path == request.path]
    kinds = dict.fromkeys((params["name"], params["arch"]) for params in selected)
    pool = ThreadPoolExecutor(os.cpu_count())  # NVRTC runs outside of Python's lock
    yield {
        (name, arch): [
            (macros, pool.submit(compiler.resources, KernelVariant.of(ALGORITHMS[name].source, arch, macros)))
            for macros in compiled(name, arch)
        ]
        for name, arch in kinds
    }
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def reports(jobs, name, arch, capsys):
    """The (macros, report) of each kernel variant of an algorithm and architecture, once all of them are compiled."""
    everything = [report for kind in jobs.values() for _, report in kind]
    waiting = [report for _, report in jobs[name, arch]]
    while waiting := wait(waiting, SECONDS_BETWEEN_LINES).not_done:
        with capsys.disabled():
            done = sum(report.done() for report in everything)
            print(f"\ncompiled {done} of {len(everything)} kernel variants", flush=True)
    return [(macros, report.result()) for macros, report in jobs[name, arch]]


@checks_registers
@each_kind
def test_every_variant_compiles_without_spills_and_with_products_that_overlap(reports, name, arch):
    for macros, report in reports:
        assert report, macros
        for kernel in report:
            assert kernel.spill_bytes == 0 and not kernel.serialized, (macros, kernel)
            assert 0 < kernel.registers <= 255, (macros, kernel)


@each_kind
def test_configurations_leave_room_for_static_shared_memory(reports, name, arch):
    for macros, report in reports:
        room = ALGORITHMS[name].static_shared_bytes(macros)
        for kernel in report:
            assert kernel.shared_bytes <= room or kernel.kernel == PACKING_KERNEL, (macros, kernel, room)
