"""Errors of a GPU: a lost CUDA context is told with what broke it, and an error that leaves it alive passes."""

import pytest
import torch

from harness.errors import GpuLost
from harness.stopwatch.gpu import check_alive, first_line, out_of_memory


def test_a_broken_context_is_told_with_the_call_and_an_error_that_leaves_the_gpu_alive_passes(monkeypatch):
    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    check_alive("cuconv auto", ValueError("no launch"))
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(GpuLost, match=r"cuconv auto .*no launch") as lost:
        check_alive("cuconv auto", ValueError("no launch"))
    assert "\n" not in str(lost.value)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("an illegal memory access"), False),
    ],
)
def test_lack_of_memory_is_told_from_other_errors(error, memory):
    assert out_of_memory(error) == memory


@pytest.mark.parametrize(("text", "line"), [("one\ntwo", "one"), ("", "no message"), ("\n \n three", "three")])
def test_the_first_line_of_an_error(text, line):
    assert first_line(RuntimeError(text)) == line
