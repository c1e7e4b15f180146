"""Tests of half precision on a GPU through the library's entry points: layouts, slices, extreme numbers."""

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem, UnsupportedProblem, conv2d, prepare, reference
from tests.gpu.half import HALVES, assert_rounded_once, each_half, each_problem, in_precision, poisoned, tensors

SMALL = ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1)
SPLIT = ConvProblem(1, 512, 7, 7, 136, 3, 3, 1, 1)
GROUPED = [
    ConvProblem(3, 72, 14, 13, 60, 3, 3, 1, 1, groups=3),
    ConvProblem(2, 64, 15, 9, 64, 3, 3, 1, 1, groups=8),
]
each_small = pytest.mark.parametrize("problem", [SMALL, SPLIT, *GROUPED], ids=lambda problem: problem.label)
each_grouped = pytest.mark.parametrize("problem", GROUPED, ids=lambda problem: problem.label)
each_algorithm = pytest.mark.parametrize("algorithm", ["auto", "batch_invariant", "nhwc_wgmma", "nhwc_split"])


@each_half
@each_problem
def test_auto_keeps_type_and_layout_and_rounds_once(problem, precision):
    problem = in_precision(problem, precision)
    x, weight = tensors(problem)
    out = conv2d(x, weight, **problem.geometry)
    assert out.dtype == x.dtype and out.is_contiguous(memory_format=torch.channels_last)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_half
@each_small
@each_algorithm
def test_bias_residual_and_relu_are_added_before_the_one_rounding(algorithm, problem, precision):
    problem = in_precision(problem, precision)
    x, weight = tensors(problem)
    bias = 30 * torch.randn(problem.m, device="cuda").to(x.dtype)
    residual = 30 * torch.randn(problem.output_shape, device="cuda").to(x.dtype, memory_format=torch.channels_last)
    truth = reference.conv2d(x, weight, bias=bias, **problem.geometry) + residual.double()
    geometry = problem.geometry
    out = conv2d(x, weight, bias, **geometry, residual=residual, relu=True, algorithm=algorithm)
    assert_rounded_once(out, truth.clamp_min(0))
    layer = prepare(weight, bias, **geometry, relu=True, algorithm=algorithm)
    for _ in range(3):
        assert torch.equal(layer(x, residual), out)


@each_half
@each_small
@pytest.mark.parametrize("channels", [0, 1, 8, 136])
def test_it_writes_to_a_slice_of_channels_and_to_nothing_else(channels, problem, precision):
    problem = in_precision(problem, precision)
    x, weight = tensors(problem)
    whole = poisoned(
        in_precision(ConvProblem(problem.n, 1, *problem.output_shape[2:], problem.m + channels, 1, 1), precision)
    )
    for start in {0, channels // 2, channels}:
        whole.fill_(torch.nan)
        out = whole[:, start : start + problem.m]
        assert conv2d(x, weight, **problem.geometry, out=out) is out
        assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
        assert whole[:, :start].isnan().all() and whole[:, start + problem.m :].isnan().all()


@each_half
@each_small
@each_algorithm
def test_numbers_that_are_not_finite_reach_the_outputs_that_read_them(algorithm, problem, precision):
    problem = in_precision(problem, precision)
    x, weight = tensors(problem)
    x[0, 3, 2, 4], x[-1, 5, 0, 0] = torch.inf, torch.nan
    weight[1, 2, 1, 1], weight[-1, 0, 0, 0] = -torch.inf, torch.nan
    out = conv2d(x, weight, **problem.geometry, algorithm=algorithm)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_half
@each_grouped
@each_algorithm
def test_numbers_of_another_group_do_not_reach_a_group(algorithm, problem, precision):
    problem = in_precision(problem, precision)
    for number in (torch.inf, torch.nan):
        for group in range(problem.groups):
            x, weight = tensors(problem)
            x.chunk(problem.groups, 1)[group].fill_(number)
            weight.chunk(problem.groups)[group].fill_(number)
            out = conv2d(x, weight, **problem.geometry, algorithm=algorithm)
            of_group = out.chunk(problem.groups, 1)
            assert not of_group[group].isfinite().any()
            assert all(one.isfinite().all() for i, one in enumerate(of_group) if i != group)
            assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_half
@each_small
@each_algorithm
def test_large_sums_overflow_to_infinity_and_small_ones_keep_their_bits(algorithm, problem, precision):
    problem = in_precision(problem, precision)
    for scale in (1e2, 4e-4) if precision == "fp16" else (1e18, 1e-18):
        x, weight = tensors(problem, scale=scale)
        truth = reference.conv2d(x, weight, **problem.geometry)
        assert_rounded_once(conv2d(x, weight, **problem.geometry, algorithm=algorithm), truth)
    if precision == "bf16":  # its range is that of the FP32 sums: where they overflow depends on their order
        return
    x, weight = tensors(problem, scale=3e3)
    out = conv2d(x, weight, **problem.geometry, algorithm=algorithm)
    truth = reference.conv2d(x, weight, **problem.geometry)
    far = (truth.abs() / torch.finfo(out.dtype).max - 1).abs() > 0.01  # near the limit the last bit decides
    assert torch.equal(out[far].isinf(), truth.to(out.dtype)[far].isinf()) and not out.isnan().any()


@each_half
@pytest.mark.parametrize("groups", [1, 4])
def test_an_image_does_not_depend_on_its_batch(groups, precision):
    for n in (1, 3, 33):
        problem = in_precision(ConvProblem(n, 64, 14, 14, 72, 3, 3, 1, 1, groups=groups), precision)
        x, weight = tensors(problem)
        one = conv2d(x[:1], weight, **problem.geometry, algorithm="batch_invariant")
        assert torch.equal(conv2d(x, weight, **problem.geometry, algorithm="batch_invariant")[:1], one)


@each_half
def test_a_graph_gives_the_same_as_calls(precision):
    problem = in_precision(SPLIT, precision)
    x, weight = tensors(problem)
    layer = prepare(weight, **problem.geometry)
    expected = layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [layer(x) for _ in range(5)]
    for _ in range(3):
        graph.replay()
    assert all(torch.equal(out, expected) for out in outs)


each_kernel = pytest.mark.parametrize(
    ("algorithm", "channels", "groups"),
    [(one, 8, 1) for one in ("nhwc_wgmma", "nhwc_split", "nhwc_stem", "nhwc_window")]
    + [("nhwc_depthwise", 8, 8), ("nhwc_grouped", 16, 2)],
)


@each_half
@each_kernel
def test_input_and_residual_may_be_what_the_kernels_ahead_write(algorithm, channels, groups, precision):
    problem = in_precision(ConvProblem(4, channels, 32, 32, channels, 3, 3, 1, 1), precision)
    inputs = [tensors(problem, seed)[0] for seed in range(20)]
    weights = [tensors(problem, seed)[1] / 8 for seed in range(3)]
    ahead, beside = (prepare(weight, padding=1) for weight in weights[:2])
    layer = prepare(weights[2][:, : channels // groups].contiguous(memory_format=torch.channels_last), padding=1,
                    groups=groups, relu=True, algorithm=algorithm)  # fmt: skip
    expected = []
    for x in inputs:
        read, added = ahead(x), beside(x)
        torch.cuda.synchronize()
        expected.append(layer(read, added))
        torch.cuda.synchronize()
    for _ in range(10):
        outs = [layer(ahead(x), beside(x)) for x in inputs]
        assert all(map(torch.equal, outs, expected))


@each_half
@each_kernel
def test_weights_may_be_what_the_kernel_ahead_writes(algorithm, channels, groups, precision):
    """The weights (M, C, KH, KW) are the output of a layer of M images, at the same address for all values."""
    x, _ = tensors(in_precision(ConvProblem(4, channels, 32, 32, channels, 3, 3, 1, 1), precision))
    made_by = in_precision(ConvProblem(channels, 8, 3, 3, channels // groups, 1, 1), precision)
    ahead, inputs = prepare(tensors(made_by)[1]), [tensors(made_by, seed)[0] for seed in range(20)]
    weight = ahead(inputs[0])

    def outputs(between):
        for one in inputs:
            ahead(one, out=weight)
            between()
            yield conv2d(x, weight, padding=1, groups=groups, algorithm=algorithm)
            between()

    expected, graph = list(outputs(torch.cuda.synchronize)), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = list(outputs(lambda: None))
    for _ in range(10):
        graph.replay()
        assert all(map(torch.equal, outs, expected))


def test_tensors_at_other_addresses_have_maps_of_their_own():
    problem = in_precision(SMALL, "fp16")
    pairs = [tensors(problem, seed) for seed in range(4)]
    outs = [conv2d(x, weight, **problem.geometry) for x, weight in pairs]
    for out, (x, weight) in zip(outs, pairs, strict=True):
        assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, w: (x.contiguous(), w), "channels_last"),
        (lambda x, w: (x, w.float().contiguous()), "use one type"),
        (lambda x, w: (x.bfloat16(), w), "use one type"),
        (lambda x, w: (x[:, :, :, 1:], w), "channels last"),
    ],
)
def test_what_is_not_computed_is_refused(change, words):
    x, weight = change(*tensors(in_precision(SMALL, "fp16")))
    with pytest.raises(UnsupportedProblem, match=words):
        conv2d(x, weight, padding=1)


@each_half
def test_it_agrees_with_torch(precision):
    x, weight = tensors(in_precision(SMALL, precision))
    ours, theirs = conv2d(x, weight, padding=1), F.conv2d(x, weight, padding=1)
    tolerance = 4e-3 if precision == "fp16" else 3e-2
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert ours.dtype == HALVES[precision]
