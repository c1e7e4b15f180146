"""Max pooling on a GPU: against torch's in float32, whose maxima are those of half precision, bit for bit."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv
from cuconv import UnsupportedProblem
from cuconv.algorithms.channels_last import max_pool
from cuconv.algorithms.channels_last.max_pool import MaxPool
from cuconv.device import device_spec
from cuconv.nn import pooling
from cuconv.nn.pool_call import pooled
from cuconv.runtime.launch_sequence import LaunchSequence

TYPES = (torch.float16, torch.bfloat16)
each_type = pytest.mark.parametrize("dtype", TYPES)
# (images, filter, stride, padding, dilation): the pools of networks; filters of one to many blocks of positions, and
# with a block's rest; strides beyond the filter; padding and dilation, unequal on the axes; windows that cover the
# image, or of which one position is in it; odd planes, planes of one row, column or pixel; channels of one vector, of
# an odd number of vectors, and of many.
POOLS = [
    ((1, 64, 112, 112), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 64, 113, 111), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 192, 28, 27), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 64, 45, 38), (2, 2), (2, 2), (0, 0), (1, 1)),
    ((2, 512, 20, 19), (5, 5), (1, 1), (2, 2), (1, 1)),
    ((1, 40, 31, 17), (13, 9), (1, 2), (6, 4), (1, 1)),
    ((2, 24, 13, 9), (1, 4), (3, 1), (0, 2), (1, 1)),
    ((2, 8, 14, 15), (3, 2), (2, 3), (1, 1), (2, 4)),
    ((1, 16, 5, 6), (5, 6), (7, 9), (2, 3), (1, 1)),
    ((1, 72, 3, 2), (2, 2), (5, 5), (1, 1), (1, 1)),
    ((70, 8, 1, 9), (1, 3), (1, 2), (0, 1), (1, 1)),
    ((5, 8, 9, 1), (3, 1), (1, 1), (1, 0), (3, 1)),
    ((7, 2048, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 8, 2, 2), (2, 2), (1, 1), (1, 1), (3, 3)),  # windows without a position in the image
]
each_pool = pytest.mark.parametrize("sizes", POOLS, ids=str)


def images(shape, dtype, seed=5):
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda")
    return values.to(dtype, memory_format=torch.channels_last)


def assert_equal(output, x, geometry, ceil_mode=False):
    """Check an output against float32's; a NaN is equal to a NaN."""
    truth = F.max_pool2d(x.float(), *geometry, ceil_mode)
    assert output.dtype == x.dtype and output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output.float(), truth, rtol=0, atol=0, equal_nan=True)


@each_type
@each_pool
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_the_maxima_are_torchs(sizes, dtype, ceil_mode):
    shape, *geometry = sizes
    x = images(shape, dtype)
    assert_equal(pooled(x, *geometry, ceil_mode), x, geometry, ceil_mode)


@each_type
@each_pool
def test_numbers_that_are_not_finite_and_extreme_ones(sizes, dtype):
    shape, *geometry = sizes
    x = images(shape, dtype)
    limits = torch.finfo(dtype)
    special = [torch.nan, torch.inf, -torch.inf, limits.max, limits.min, limits.smallest_normal / 4, 0.0]
    places = torch.randint(0, 40, shape, device="cuda", generator=torch.Generator("cuda").manual_seed(9))
    for place, value in enumerate(special):
        x[places == place] = value
    assert_equal(pooled(x, *geometry, False), x, geometry)


@each_type
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_images_of_one_value(value, dtype):
    x = torch.full((2, 16, 7, 9), value, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    geometry = ((3, 3), (2, 2), (1, 1), (1, 1))
    assert_equal(pooled(x, *geometry, True), x, geometry, True)


def test_a_negative_nan_is_a_nan():
    x = images((1, 8, 4, 4), torch.float16)
    x.view(torch.int16)[0, 3, 1, 1] = -1
    output = pooled(x, (2, 2), (2, 2), (0, 0), (1, 1), False)
    assert output[0, 3, 0, 0].isnan() and output.isnan().sum() == 1


@each_pool
def test_the_memory_around_an_output_stays_as_it_is(sizes):
    """The last block may have more threads than there are outputs left."""
    shape, *geometry = sizes
    x, pool, spec = images(shape, torch.float16), MaxPool("fp16", *sizes), device_spec(torch.cuda.current_device())
    sequence = LaunchSequence([max_pool.launch(pool, overlap=True)], spec.arch, x.device.index)
    around, elements = 4096, prod(pool.output_shape)
    memory = torch.full((2 * around + elements,), 7.0, device="cuda", dtype=torch.float16)
    stream = torch.cuda.current_stream().cuda_stream
    sequence.enqueue(stream, x.data_ptr(), 0, 0, memory.data_ptr() + 2 * around, 0)
    n, c, h, w = pool.output_shape
    output = memory[around:-around].view(n, h, w, c).permute(0, 3, 1, 2)
    assert torch.equal(output, F.max_pool2d(x, *geometry))
    assert (memory[:around] == 7).all() and (memory[-around:] == 7).all()


@each_type
def test_it_overlaps_with_the_kernels_ahead_and_behind(dtype):
    """Convolutions write what is pooled and read the maxima, one right after the other, into memory used again."""
    first, last = images((64, 8, 3, 3), dtype, 1), images((32, 64, 1, 1), dtype, 2)
    x = images((4, 8, 57, 55), dtype)
    geometry = ((3, 3), (2, 2), (1, 1), (1, 1))
    y = cuconv.conv2d(x, first, padding=1)
    torch.cuda.synchronize()
    wanted = cuconv.conv2d(F.max_pool2d(y, *geometry), last)
    for _ in range(300):
        output = cuconv.conv2d(pooled(cuconv.conv2d(x, first, padding=1), *geometry, False), last)
        assert torch.equal(output, wanted)


def test_a_cuda_graph_follows_its_input():
    x, geometry = images((2, 64, 31, 33), torch.float16), ((3, 3), (2, 2), (1, 1), (1, 1))
    pooled(x, *geometry, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = pooled(x, *geometry, False)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_equal(output, x, geometry)


def test_other_streams():
    x, geometry = images((2, 64, 31, 33), torch.float16), ((3, 3), (2, 2), (1, 1), (1, 1))
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            output = pooled(x, *geometry, False)
        stream.synchronize()
        assert_equal(output, x, geometry)


@pytest.mark.parametrize("shape", [(1, 12, 9, 9), (0, 8, 9, 9)])
def test_what_is_refused_is_torchs(shape):
    x, options = images(shape, torch.float16), ((3, 3), (2, 2), (1, 1), (1, 1), False)
    with pytest.raises(UnsupportedProblem):
        pooled(x, *options)
    assert torch.equal(torch.ops.cuconv.max_pool2d(x, *options), F.max_pool2d(x, *options))


@each_type
def test_graphs_pool_by_the_kernel_at_every_batch(monkeypatch, dtype):
    shapes = []

    def told(x, *options):
        output = pooled(x, *options)
        shapes.append(x.shape)
        return output

    monkeypatch.setattr(pooling, "pooled", told)
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 1)).eval()
    model = model.cuda().to(dtype).to(memory_format=torch.channels_last)
    x = images((2, 3, 64, 64), dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured
    for n in (2, 5, 1):
        shapes.clear()
        x = images((n, 3, 64, 64), dtype, n)
        torch.testing.assert_close(converted(x), model(x), rtol=3e-2, atol=3e-2)
        assert shapes == [(n, 64, 32, 32)]


def test_gradients_are_torchs():
    with torch.enable_grad():
        ours = images((2, 8, 9, 11), torch.float16).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        torch.ops.cuconv.max_pool2d(ours, (3, 3), (2, 2), (1, 1), (1, 1), False).square().sum().backward()
        F.max_pool2d(theirs, 3, 2, 1).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)  # torch adds in any order
