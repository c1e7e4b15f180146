"""Blocks that one thread enters change no call of another thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cuconv.nn
from cuconv import ConvProblem
from cuconv.nn import frozen, operator
from cuconv.precompile import PlannedCall
from tests.cuconv.nn.models import close, made


def fake_call(size):
    """Call the operator on two images of a size, without data."""
    with torch.no_grad(), FakeTensorMode():
        cuconv.nn.conv2d(torch.empty(2, 4, size, size), torch.empty(8, 4, 1, 1))


def planned_call(size, channels=None):
    """The planned call that a recording has of a fake call."""
    return PlannedCall(ConvProblem(2, 4, size, size, 8, 1, 1), output_channels=channels)


def recorded_call(size):
    """The planned calls that a thread records while it makes one fake call."""
    with operator.recorded() as calls:
        fake_call(size)
    return calls


def test_a_thread_collects_its_own_calls():
    with ThreadPoolExecutor(1) as thread, operator.recorded() as calls:
        fake_call(5)
        thread.submit(fake_call, 6).result()
        assert not thread.submit(operator.is_recording).result()
        with operator.writing_slices(12):
            assert thread.submit(recorded_call, 7).result() == {planned_call(7)}
            fake_call(8)
    assert calls == {planned_call(5), planned_call(8, 12)}


def test_collections_of_two_threads_may_overlap():
    """A thread that ends its collection leaves the other thread's alone."""
    with ThreadPoolExecutor(1) as thread:
        theirs = operator.recorded()
        with operator.recorded() as calls:
            their_calls = thread.submit(theirs.__enter__).result()
        fake_call(5)
        thread.submit(fake_call, 6).result()
        thread.submit(theirs.__exit__, None, None, None).result()
    assert (calls, their_calls) == (set(), {planned_call(6)})


def test_torch_computes_the_layers_of_one_thread_alone(on_a_gpu):
    model, x = made("sequential")
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured
    on_a_gpu.clear()

    def call():
        with torch.no_grad():
            return converted(x)

    with ThreadPoolExecutor(1) as thread, frozen.computed_by_torch():
        ours = call()
        assert not on_a_gpu
        theirs = thread.submit(call).result()
        assert {one["kind"] for one in on_a_gpu} == {"prepared"} and close(ours, theirs)


def test_a_model_serves_while_others_are_converted(on_a_gpu):
    """In its graphs, with the same results."""
    model, x = made("block")
    converted, report = cuconv.nn.convert(model, x)
    with torch.no_grad():
        expected = converted(x)
    done = threading.Event()

    def serve():
        served = 0
        with torch.no_grad():
            while not done.is_set() or not served:
                torch.testing.assert_close(converted(x), expected, rtol=1e-6, atol=1e-6)
                served += 1
        return served

    with ThreadPoolExecutor(3) as threads:
        serving = threads.submit(serve)
        for future in [
            threads.submit(cuconv.nn.convert, *made(name)) for name in ("fire", "branches", "block", "fire")
        ]:
            assert future.result()[1].captured
        done.set()
        served = serving.result()
    assert report.own_calls == 0 and report.folded_calls == served + 1
