"""Flags for prepared weights: no two kernels that may run at the same time share any."""

from types import SimpleNamespace

import pytest
import torch

from cuconv import flags, jit
from cuconv.device import H200
from cuconv.flags import SLOT_BYTES, SLOTS, Flags, capture_of


class Library:
    """Memory of a GPU, which is only counted."""

    pointer = staticmethod(torch.Tensor.data_ptr)

    def __init__(self):
        self.allocations = []

    def zeros(self, count, device):
        self.allocations.append(torch.zeros(count))
        return self.allocations[-1]


@pytest.fixture
def captures(monkeypatch):
    """The numbers of captures by stream."""
    numbers = {}
    monkeypatch.setattr(flags, "capture_of", lambda stream: numbers.get(stream, 0))
    return numbers


def test_streams_and_captures_have_flags_of_their_own(captures):
    some = Flags(Library(), 0)
    found = [some.address(stream) for stream in (0, 1, 2)]
    for number in (7, 8):
        captures[1] = number
        found.append(some.address(1))
    assert all(found) and len(set(found)) == len(found)
    distances = [abs(a - b) for a in found for b in found if a != b]
    assert min(distances) >= SLOT_BYTES
    captures.clear()
    assert [some.address(stream) for stream in (0, 1, 2)] == found[:3]


def test_a_slot_holds_the_flags_of_every_kernel():
    """The fewest bytes: three flags for each block of a grid that has one block on each SM."""
    assert 3 * 4 * H200.sm_count <= SLOT_BYTES


def test_flags_are_zeros_in_memory_that_stays(captures):
    library = Library()
    some = Flags(library, 0)
    start = library.allocations[0].data_ptr() if some.address(5) else 0
    assert 0 <= some.address(5) - start < SLOTS * SLOT_BYTES
    assert not library.allocations[0].any() and library.allocations[0].numel() * 4 == SLOTS * SLOT_BYTES


def test_nothing_is_allocated_in_a_capture(captures):
    library = Library()
    some = Flags(library, 0)
    captures[1] = 1
    assert some.address(1) == 0 and not library.allocations
    some.address(2)
    for number in range(1, SLOTS + 5):
        captures[1] = number
        some.address(1)
    assert some.address(1) == 0 and len(library.allocations) == 1
    assert some.address(3) and len(library.allocations) == 2  # outside of a capture, so that the next one has some
    assert some.address(1)


def driver(status, number, code=0):
    """A driver that tells of a capture, or refuses."""

    def cuStreamGetCaptureInfo_v2(stream, status_out, number_out, *others):
        assert stream.value == 99 and others == (None, None, None)
        status_out._obj.value, number_out._obj.value = status, number
        return code

    def cuGetErrorString(code, text):
        text._obj.value = b"no such stream"

    return SimpleNamespace(cuStreamGetCaptureInfo_v2=cuStreamGetCaptureInfo_v2, cuGetErrorString=cuGetErrorString)


@pytest.mark.parametrize(("status", "number"), [(0, 0), (1, 2**40), (2, 0)])
def test_the_driver_says_whether_a_stream_is_captured(monkeypatch, status, number):
    monkeypatch.setattr(jit, "_driver", lambda: driver(status, number))
    assert capture_of(99) == number


def test_the_default_stream_is_never_captured():
    assert capture_of(0) == 0


def test_a_refusal_of_the_driver_is_raised(monkeypatch):
    monkeypatch.setattr(jit, "_driver", lambda: driver(0, 0, code=400))
    with pytest.raises(jit.LaunchError, match="no such stream"):
        capture_of(99)
