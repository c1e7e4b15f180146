"""Ready calls of max pooling without a GPU: launches are recorded."""

import pytest
import torch

from cuconv import UnsupportedProblem
from cuconv.algorithms.channels_last import max_pool
from cuconv.call import NotReady
from cuconv.device import A100, H200
from cuconv.nn import kernel_call
from cuconv.nn.pool_call import pooled
from tests.cuconv.fake_gpu import Recorder

GEOMETRY = ((3, 3), (2, 2), (1, 1), (1, 1), False)


class OnGpu3(torch.Tensor):
    """A CPU tensor that says that it is on GPU 3."""

    device = torch.device("cuda", 3)


@pytest.fixture
def gpu(cuda, monkeypatch):
    """A machine whose launches go to Recorder."""
    cuda.jobs, cuda.spec = [], H200

    class Job:
        def __init__(self, variants):
            self.variants = variants

        def replaces(self, call):
            cuda.jobs.append((self.variants, call))

    monkeypatch.setattr(kernel_call, "_thread", kernel_call.ReadyCalls())
    monkeypatch.setattr(kernel_call, "LaunchSequence", Recorder)
    monkeypatch.setattr(kernel_call, "library_of", lambda array: cuda.tensors)
    monkeypatch.setattr(kernel_call, "device_spec", lambda device: cuda.spec)
    monkeypatch.setattr(kernel_call, "is_available", lambda variant, _: variant.source.stem not in cuda.missing)
    monkeypatch.setattr(kernel_call.background, "compile_later", Job)
    return cuda


def images(*shape, dtype=torch.float16):
    return torch.zeros(shape).to(dtype, memory_format=torch.channels_last).as_subclass(OnGpu3)


def test_calls_of_a_signature_share_what_is_prepared(gpu):
    x, y = images(2, 16, 9, 7), images(2, 16, 9, 7)
    outputs = [pooled(one, *GEOMETRY) for one in (x, y)]
    assert len(Recorder.made) == 1 and Recorder.made[0][1:] == (H200.arch, 3)
    (launch,) = Recorder.made[0][0]
    assert launch.source == max_pool.SOURCE and launch.overlap and gpu.devices[-1] == 0 and 3 in gpu.devices
    addresses = [addresses for _, _, addresses in Recorder.enqueued]
    assert [one[0] for one in addresses] == [x.data_ptr(), y.data_ptr()]
    assert [one[3] for one in addresses] == [output.data_ptr() for output in outputs]
    assert all(output.shape == (2, 16, 5, 4) and output.dtype == torch.float16 for output in outputs)


def test_other_signatures_are_prepared_for_themselves(gpu):
    pooled(images(2, 16, 9, 7), *GEOMETRY)
    pooled(images(1, 16, 9, 7), *GEOMETRY)
    pooled(images(2, 16, 9, 7, dtype=torch.bfloat16), *GEOMETRY)
    pooled(images(2, 16, 9, 7), *GEOMETRY[:4], True)
    assert [launch.macros["BF16"] for (launch,), *_ in Recorder.made] == [0, 0, 1, 0]


def test_a_gpu_without_dependent_launch(gpu):
    gpu.spec = A100
    pooled(images(2, 16, 9, 7), *GEOMETRY)
    assert not Recorder.made[0][0][0].overlap


def test_calls_are_not_ready_while_the_kernel_compiles(gpu):
    gpu.missing.add("max_pool")
    for _ in range(2):
        with pytest.raises(NotReady):
            pooled(images(2, 16, 9, 7), *GEOMETRY)
    (((variant,), call),) = gpu.jobs
    assert variant.source == max_pool.SOURCE and not Recorder.made
    call.is_stale, call.error = True, OSError("no space")
    with pytest.raises(NotReady):
        pooled(images(2, 16, 9, 7), *GEOMETRY)
    assert len(gpu.jobs) == 2, "an error that may pass: the kernel is compiled again"
    gpu.missing.clear()
    call.is_stale = True
    pooled(images(2, 16, 9, 7), *GEOMETRY)
    assert len(Recorder.enqueued) == 1 and len(gpu.jobs) == 2


def test_calls_wait_where_they_are_asked_to(gpu):
    gpu.missing.add("max_pool")
    with kernel_call.background.waiting():
        pooled(images(2, 16, 9, 7), *GEOMETRY)
    assert len(Recorder.enqueued) == 1 and not gpu.jobs


def odd_address():
    return torch.zeros(2 * 8 * 5 * 5 + 1).half()[1:].view(2, 5, 5, 8).permute(0, 3, 1, 2).as_subclass(OnGpu3)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 8, 5, 5).half().as_subclass(OnGpu3),
        odd_address(),
        images(2, 12, 5, 5),
        images(2, 8, 5, 5, dtype=torch.float32),
        images(0, 8, 5, 5),
    ],
    ids=["NCHW", "odd address", "12 channels", "float32", "no images"],
)
def test_what_the_kernel_does_not_compute_is_refused(gpu, x):
    with pytest.raises(UnsupportedProblem):
        pooled(x, *GEOMETRY)
    assert not Recorder.enqueued


def test_a_refusal_is_kept(gpu, monkeypatch):
    made = []
    monkeypatch.setattr(max_pool, "launch", lambda *_: made.append(1))
    for _ in range(3):
        with pytest.raises(UnsupportedProblem, match="multiple of 8"):
            pooled(images(2, 12, 5, 5), *GEOMETRY)
    assert len(kernel_call._thread.ready_calls) == 1 and not made
