"""The workspace of cuDNN's calls, on the CPU: shared by calls that live at once, and freed with the last of them."""

import pytest
import torch

from harness.contenders.base import NoMemory, NotRunnable, Offer, Prepared, prepare_within
from harness.contenders.workspace import Workspace


@pytest.fixture
def made(monkeypatch):
    """Buffers are made in the CPU's memory; returns their sizes. More than 100 bytes are not there."""
    sizes, empty = [], torch.empty

    def make(size, dtype, device):
        if size > 100:
            raise torch.cuda.OutOfMemoryError
        sizes.append(size)
        return empty(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", make)
    return sizes


def test_calls_that_live_at_once_share_a_buffer(made):
    workspace = Workspace()
    first = workspace.reserve(20)
    assert workspace.reserve(20) is first and workspace.reserve(10) is first
    larger = workspace.reserve(30)
    assert larger is not first and len(first) == 20, "a call that keeps a buffer can still be replayed"
    assert workspace.reserve(20) is larger
    assert made == [20, 30]


def test_a_buffer_is_freed_with_its_last_call(made):
    workspace = Workspace()
    first = workspace.reserve(20)
    del first
    assert len(workspace.reserve(10)) == 10 and made == [20, 10]


def test_memory_that_is_not_there_is_told_with_its_size(made):
    with pytest.raises(NoMemory, match="101") as reason:
        Workspace().reserve(101)
    assert (reason.value.needed, reason.value.status) == (101, "error")


def refused():
    raise NoMemory(9)


@pytest.mark.parametrize("prepare", [lambda: Prepared(list, 9), refused], ids=["ready", "no memory"])
def test_who_does_not_measure_keeps_to_the_limit(prepare):
    offer = Offer("cudnn", "fft", prepare)
    with pytest.raises(NotRunnable, match="9 bytes") as reason:
        prepare_within(offer, 8)
    assert reason.value.status == "workspace_exceeded"
    if prepare is refused:
        with pytest.raises(NoMemory):
            prepare_within(offer, 9)
    else:
        assert prepare_within(offer, 9).workspace_bytes == 9
