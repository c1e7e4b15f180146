"""Flags for prepared weights: no two kernels that may run at the same time share any."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import torch

from cuconv.device import H200
from cuconv.runtime.flags import SLOT_BYTES, SLOTS, Flags
from cuconv.runtime.streams import PER_THREAD


class Library:
    """Memory of a GPU, which is only counted."""

    pointer = staticmethod(torch.Tensor.data_ptr)

    def __init__(self):
        self.allocations, self.synchronized = [], 0

    def zeros(self, count, device):
        self.allocations.append(torch.zeros(count))
        return self.allocations[-1]

    def synchronize(self, device):
        self.synchronized += 1


def test_streams_have_flags_of_their_own():
    library = Library()
    some = Flags(library, 0)
    found = [some.address(stream) for stream in (0, 1, 5)]
    assert all(found) and len(set(found)) == len(found)
    assert min(abs(a - b) for a in found for b in found if a != b) >= SLOT_BYTES
    assert [some.address(stream) for stream in (0, 1, 5)] == found
    assert len(library.allocations) == library.synchronized == 1
    assert len({some.address(stream) for stream in range(6, 6 + 2 * SLOTS)} - set(found)) == 2 * SLOTS


def test_each_stream_of_a_capture_has_flags_in_memory_of_its_graph():
    library = Library()
    some = Flags(library, 0)
    outside = some.address(1)
    found = [some.address(stream, capture) for stream, capture in ((1, 7), (5, 7), (1, 8))]
    assert len({outside, *found}) == 4 and some.address(1, 8) == found[2]
    assert [memory.numel() * 4 for memory in library.allocations[1:]] == [SLOT_BYTES] * 3
    assert library.synchronized == 1  # not in a capture
    assert some.address(1) == outside


def test_captures_use_nothing_up_and_their_memory_is_forgotten():
    library = Library()
    some = Flags(library, 0)
    for number in range(1, 300):
        assert some.address(1, number)
    memory = [weakref.ref(one) for one in library.allocations]
    library.allocations.clear()
    assert [one() is not None for one in memory] == [False] * 298 + [True]
    some.address(1)
    assert memory[-1]() is None


def test_the_default_streams_of_threads_have_one_handle_and_flags_of_their_own():
    some = Flags(Library(), 0)
    found = [some.address(PER_THREAD), some.address(PER_THREAD)]
    for _ in range(3):  # one after the other, so that Python gives them the same identifier
        with ThreadPoolExecutor(1) as thread:
            found += thread.map(some.address, [PER_THREAD, PER_THREAD])
    assert found[::2] == found[1::2] and len(set(found)) == 4


def test_a_call_in_the_middle_of_another_one_does_not_wait_for_it():
    library = Library()
    some = Flags(library, 0)
    synchronize = library.synchronize
    library.synchronize = lambda device: synchronize(device) or (library.synchronized == 1 and some.address(5))
    assert some.address(1) and some.address(1) != some.address(5)


def test_a_slot_holds_the_flags_of_every_kernel():
    """The fewest bytes: three flags for each block of a grid that has one block on each SM."""
    assert 3 * 4 * H200.sm_count <= SLOT_BYTES


def test_flags_are_zeros_in_memory_that_stays():
    library = Library()
    some = Flags(library, 0)
    start = library.allocations[0].data_ptr() if some.address(5) else 0
    assert 0 <= some.address(5) - start < SLOTS * SLOT_BYTES
    assert not library.allocations[0].any() and library.allocations[0].numel() * 4 == SLOTS * SLOT_BYTES
