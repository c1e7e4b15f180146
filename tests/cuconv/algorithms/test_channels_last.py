"""The algorithms in half precision: tensor maps, refusals, options, and what a call of conv2d makes of its tensors."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS, kernel_set
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.channels_last.channels_last import BOXES, corners_of, output_map, pixel_map, weight_map
from cuconv.algorithms.channels_last.pad_channels import Operands, copies_of
from cuconv.core.activation import RELU, activation_of
from cuconv.core.launch import INPUT, OUTPUT, WEIGHT, WORKSPACE, TensorMap
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import TYPICAL, in_precision
from tests.cuconv.fake_gpu import Recorder
from tests.cuconv.layers import problems_of

NAMES = ("nhwc_wgmma", "nhwc_split")
HALF = replace(TYPICAL, precision="fp16")
OTHERS = [one for sweep in ("strided", "unseen") for one in problems_of(sweep)]
COMPUTED = [p for p in in_precision("fp16", [*problems_of("paper", (1, 8)), *OTHERS]) if p.c % 8 == 0 and p.groups == 1]
# Groups of channels in less than a box, in boxes and a half, and in many; filters of a group in no whole tile or pair.
RESNEXT = [p for p in in_precision("fp16", problems_of("grouped")) if p.groups > 1 and p.group_channels % 8 == 0]
GROUPED = [
    *RESNEXT,
    replace(HALF, groups=4, m=132),
    replace(HALF, groups=12, m=12),
    replace(HALF, groups=2, m=2 * 200, n=1, h=7, w=9, stride_w=2, dilation_h=3, pad_h=4),
]
each_name = pytest.mark.parametrize("name", NAMES)


def own(p):
    """The operands of a call as they are."""
    return Operands(INPUT, WEIGHT, p.c, p.c * p.w, p.group_channels)


def launch_of(name, problem, options=None):
    algorithm = ALGORITHMS[name]
    (launch,) = algorithm.launches(problem, algorithm.configure(problem, H200), options or CallOptions())
    return launch


UNEQUAL = [
    replace(HALF, more_h=1, more_w=-1),
    replace(HALF, pad_h=0, pad_w=3, more_h=4, more_w=-3, stride_h=2, dilation_w=2),
    replace(HALF, c=3, kw=4, pad_w=0, stride_w=2, more_h=1, more_w=1),
    replace(HALF, c=65, kh=1, kw=1, pad_h=0, more_h=1, more_w=2),
]


def test_copies_start_at_every_filter_of_an_image_and_nowhere_else():
    for p in [*COMPUTED, *UNEQUAL]:
        (left, top), (right, bottom) = corners_of(p)
        columns = range(left, p.w + right, p.stride_w)  # of the pixels from corner to corner
        rows = range(top, p.h + bottom, p.stride_h)
        assert list(columns) == [x * p.stride_w - p.pad_w for x in range(p.out_w)], p.label
        assert list(rows) == [y * p.stride_h - p.pad_h for y in range(p.out_h)], p.label


def test_copies_of_operands_are_of_a_problem_with_the_same_outputs():
    copied = [p for p in UNEQUAL if copies_of(p)]
    assert len(copied) == 2
    for p in copied:
        assert copies_of(p).computed.output_shape == p.output_shape


def test_maps_are_of_dense_tensors_and_fit_the_driver_s_limits():
    for p in COMPUTED:
        for boxes in BOXES:
            maps = (
                pixel_map(p, boxes, 256, own(p)),
                weight_map(p, boxes, 256, own(p)),
                output_map(p, 64, p.m),
            )
            elements = p.n * p.c * p.h * p.w, p.m * p.c * p.filter_area, p.n * p.m * p.out_pixels
            for one, count in zip(maps, elements, strict=True):
                assert one.strides[-1] * one.sizes[-1] == 2 * count
                assert all(size <= 256 for size in one.box) and one.box[0] * 2 == one.swizzle
                assert all(stride % 16 == 0 for stride in one.strides) or p.m % 8


def test_maps_of_groups_reach_no_other_group():
    for p in GROUPED:
        for boxes in BOXES:
            pixels, weights = pixel_map(p, boxes, 256, own(p)), weight_map(p, boxes, 256, own(p))
            assert pixels.sizes == (p.group_channels, p.w, p.h, p.n, p.groups)
            assert weights.sizes[0] == p.group_channels and weights.sizes[-1] == p.m
            assert all(stride % 16 == 0 for stride in (*pixels.strides, *weights.strides))
            # The place in memory of each group's first channel in the last pixel: its coordinates times the strides.
            last = (p.w - 1, p.h - 1, p.n - 1)
            for group in range(p.groups):
                place = sum(i * stride for i, stride in zip((*last, group), pixels.strides, strict=True))
                assert place == 2 * ((p.n * p.h * p.w - 1) * p.c + group * p.group_channels)
            for corner, plane in zip(pixels.corners, corners_of(p), strict=True):
                assert corner == (*plane, 0) and all(-16 <= place <= 15 for place in corner)


def test_a_map_of_groups_writes_no_filter_of_another_group():
    p = replace(HALF, groups=4, m=96)
    one = output_map(p, 16, 128)
    assert (one.sizes, one.strides, one.box) == ((24, 4, p.n * p.out_pixels), (48, 256), (16, 1, 64))


@each_name
def test_the_tiles_of_a_layer_hold_every_filter_of_every_group_once(name):
    for p in GROUPED:
        try:
            configs = ALGORITHMS[name].candidates(p, H200)
        except UnsupportedProblem:  # too many outputs for clusters
            continue
        for config in configs[:: 1 + len(configs) // 8]:
            (launch,) = ALGORITHMS[name].launches(p, config)
            start = launch.arguments.index(OUTPUT)
            filters, group_filters = launch.arguments[start + 3 : start + 5]
            tiles, group_tiles = launch.arguments[start + 16 : start + 18]
            covered = [
                tile // group_tiles * group_filters + in_group
                for tile in range(tiles)
                for in_group in range(tile % group_tiles * config.tile.filters, group_filters)[: config.tile.filters]
            ]
            assert covered == list(range(filters)) == list(range(p.m))


def test_weights_stay_only_where_a_block_has_one_group_s_filters():
    for p in GROUPED:
        for config in ALGORITHMS["nhwc_wgmma"].candidates(p, H200):
            tiles = p.groups * -(-p.group_filters // config.tile.filters)
            assert not config.keeps or config.blocks % tiles == 0


def test_auto_computes_groups_by_listed_kernels_whatever_the_filters_of_a_group():
    calls = CallOptions(), CallOptions(aligned=False), CallOptions(residual=True)
    for p in GROUPED:
        for options in calls:
            plan = cuconv.select.plan(p, H200, "auto", False, options.residual, options.aligned)
            launches = cuconv.select.launches_of(plan, p, options)
            assert kernel_set.holds(H200.arch, launches), p.label
            assert plan.algorithm == "nhwc_grouped" or all(launch.macros["GROUPED"] == 1 for launch in launches)
            assert (options.aligned and p.group_filters % 8 == 0) or not launches[-1].macros.get("WHOLE")


@each_name
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 8}, "12 channels in each of 8 groups"),
        ({"groups": 96, "m": 96}, "multiple of 8 channels"),
        ({"groups": 4, "kh": 1, "kw": 33, "w": 400, "pad_h": 0}, "filters of up to 32"),
        ({"groups": 4, "kh": 1, "pad_h": 17}, "reach up to 15"),
        ({"kh": 1, "kw": 300, "w": 400, "pad_h": 0}, "filters of up to"),
        ({"stride_w": 9}, "strides up to"),
        ({"pad_w": 200, "kw": 1}, "padding"),
        ({"precision": "tf32"}, "fp16"),
        ({"precision": "tf32_channels_last", "c": 98}, "multiple of 4"),
    ],
)
def test_what_tensor_maps_do_not_reach_is_refused(name, change, words):
    with pytest.raises(UnsupportedProblem, match=words):
        ALGORITHMS[name].candidates(replace(HALF, **change), H200)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_refusal_of_auto_says_why(precision):
    problem = replace(HALF, precision=precision)
    with pytest.raises(UnsupportedProblem, match="8 groups"):
        cuconv.plan(replace(problem, groups=8), H200)
    with pytest.raises(UnsupportedProblem, match="sm_80"):
        cuconv.plan(problem, A100)


@each_name
def test_each_warpgroup_of_a_reduction_has_stages_of_its_own(name):
    for p in COMPUTED[::5]:
        try:
            configs = ALGORITHMS[name].candidates(p, H200)
        except UnsupportedProblem:  # too many outputs for clusters
            continue
        for config in configs:
            shares = getattr(config.tile, "warpgroup_split_k", 1)
            (launch,) = ALGORITHMS[name].launches(p, config)
            stages = launch.arguments[-5]
            assert stages % shares == 0 and (shares == 1 or stages >= 2 * shares)


@each_name
def test_options_are_arguments_of_the_one_kernel(name):
    activation, paired = -4, -2
    assert launch_of(name, HALF).arguments[activation:] == (0, 0, 1, 0)
    for one in (RELU, activation_of(("hardtanh", -2, 3))):
        options = CallOptions(activation=one, packed=True)
        assert launch_of(name, HALF, options).arguments[activation:] == (one.kind, one.packed_numbers, 1, 1)
    assert launch_of(name, HALF, CallOptions(aligned=False)).arguments[paired] == 0
    for odd in (replace(HALF, m=65), replace(HALF, groups=4, m=100)):
        assert launch_of(name, odd).arguments[paired] == 0
    assert launch_of(name, HALF, CallOptions(output_channels=HALF.m + 1)).arguments[paired] == 0
    assert launch_of(name, replace(HALF, precision="bf16")).macros["BF16"] == 1
    assert launch_of(name, HALF, CallOptions(packed=True)).arguments[-1] == 1


def test_a_tensor_map_writes_where_pixels_start_at_multiples_of_16_bytes():
    assert launch_of("nhwc_wgmma", HALF).macros["WHOLE"] == 1
    for problem, options in [
        (replace(HALF, m=68), CallOptions()),
        (HALF, CallOptions(aligned=False)),
        (HALF, CallOptions(output_channels=HALF.m + 4)),
        (replace(HALF, groups=4, m=48), CallOptions()),
    ]:
        launch = launch_of("nhwc_wgmma", problem, options)
        assert launch.macros["WHOLE"] == 0
        assert all(stride % 16 == 0 for one in launch.arguments if isinstance(one, TensorMap) for stride in one.strides)


def test_what_auto_launches_is_listed_wherever_the_output_starts():
    calls = [CallOptions(), CallOptions(aligned=False)]
    calls += [CallOptions(output_channels=4096 + more, residual=added) for more in (0, 1, 4) for added in (False, True)]
    for p in COMPUTED[::3]:
        for m in (p.m, p.m + 1, p.m + 2):
            problem = replace(p, m=m)
            plan = cuconv.plan(problem, H200)  # without knowing where an output will start
            for options in calls:
                assert kernel_set.holds(H200.arch, cuconv.select.launches_of(plan, problem, options)), problem.label


STEMS = [  # channels that are few or odd, and the channels of the equal problem
    (ConvProblem(2, 3, 31, 33, 64, 7, 7, 3, 3, stride_h=2, stride_w=2), 28),
    (ConvProblem(1, 3, 20, 24, 64, 3, 3, 1, 1), 24),
    (ConvProblem(1, 3, 47, 43, 16, 11, 11, 2, 2, stride_h=4, stride_w=4), 44),
    (ConvProblem(3, 1, 9, 5, 3, 3, 3, 1, 1), 24),
    (ConvProblem(2, 12, 11, 9, 8, 3, 5, 1, 2, dilation_h=2), 80),
    (ConvProblem(1, 3, 15, 16, 8, 3, 3, 2, 2, dilation_w=2), 8),
    (ConvProblem(2, 129, 7, 7, 33, 1, 1), 136),
    (ConvProblem(1, 100, 7, 6, 33, 3, 3, 1, 1), 104),
]


def copied(x, rows, pixel, left, vectors, channels, width):
    """The copy that the kernel makes of rows of pixels, by its description."""
    found = torch.zeros(rows, vectors * 8, dtype=x.dtype)
    places = torch.arange(vectors * 8)
    at, channel = places // pixel - left, places % pixel
    inside = (at >= 0) & (at < width) & (channel < channels)
    found[:, inside] = x.reshape(rows, width, channels)[:, at[inside], channel[inside]]
    return found.flatten()


def read(memory, tensor_map, sizes):
    """The elements that a tensor map reads, with as many channels as it has."""
    steps = [1, *(stride // 2 for stride in tensor_map.strides)]
    return memory.as_strided(sizes[::-1], steps[::-1], tensor_map.address.offset // 2)


@pytest.mark.parametrize(("problem", "channels"), STEMS, ids=lambda value: getattr(value, "label", ""))
def test_copies_of_few_channels_make_an_equal_problem(problem, channels):
    p, algorithm = replace(problem, precision="fp16"), ALGORITHMS["nhwc_wgmma"]
    config = algorithm.configure(p, H200)
    padding, main = algorithm.launches(p, config, CallOptions(packed=True))
    x, weight = torch.randn(p.n, p.h, p.w, p.c).double(), torch.randn(p.m, p.kh, p.kw, p.c).double()
    input_rows, weight_rows, c, pixel, _, width, kernel_w, left, of_input, _, of_weight, *_ = padding.arguments[3:]
    memory = torch.cat(
        [
            copied(x, input_rows, pixel, left, of_input, c, width),
            copied(weight, weight_rows, pixel, 0, of_weight, c, kernel_w),
        ]
    )
    assert config.workspace_bytes == 2 * len(memory) and padding.blocks * padding.threads * 8 >= len(memory)
    pixels, weights = main.arguments[:2]
    equal = copies_of(p).computed
    assert pixels.sizes == (equal.c, equal.w, equal.h, equal.n) and equal.c == channels
    assert pixels.address == WORKSPACE and weights.address.operand == WORKSPACE.operand
    images = read(memory, pixels, pixels.sizes).permute(0, 3, 1, 2)
    filters = read(memory, weights, weights.sizes).reshape(p.m, equal.kh, equal.kw, equal.c).permute(0, 3, 1, 2)
    found = torch.nn.functional.conv2d(images, filters, **equal.geometry)
    wanted = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), **p.geometry)
    torch.testing.assert_close(found, wanted)
    assert all(stride % 16 == 0 for one in (pixels, weights) for stride in one.strides)
    assert pixels.address.offset % 16 == weights.address.offset % 16 == 0
    assert main.arguments[-1] == 0  # the kernel ahead writes the weights


# What conv2d makes of its tensors.


def tensors(dtype=torch.float16, n=2, c=16, m=24):
    x, weight = torch.zeros(n, c, 6, 5), torch.zeros(m, c, 3, 3)
    return (one.to(dtype, memory_format=torch.channels_last) for one in (x, weight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_output_has_the_type_and_the_layout_of_the_input(dtype, cuda):
    x, weight = tensors(dtype)
    precision = "tf32" if dtype == torch.float32 else "fp32"  # the default stands for any type
    for out in (
        cuconv.conv2d(x, weight, padding=1, precision=precision),
        cuconv.prepare(weight, padding=1, precision=precision)(x),
    ):
        assert out.dtype == dtype and out.shape == (2, 24, 6, 5)
        assert out.is_contiguous(memory_format=torch.channels_last)
        (launch,), *_ = Recorder.enqueued[-1]
        assert launch.macros.get("BF16", 0) == (dtype == torch.bfloat16)
        assert launch.macros.get("TF32", 0) == (dtype == torch.float32)
        assert isinstance(launch.arguments[0], TensorMap)


def test_float32_is_computed_in_either_layout_but_not_in_both(cuda):
    x, weight = tensors(torch.float32)
    assert cuconv.conv2d(x.contiguous(), weight.contiguous(), padding=1, precision="tf32").is_contiguous()
    for pair in ((x, weight.contiguous()), (x.contiguous(), weight)):
        with pytest.raises(UnsupportedProblem, match="use one layout"):
            cuconv.conv2d(*pair, padding=1, precision="tf32")
    with pytest.raises(UnsupportedProblem, match="'tf32'"):
        cuconv.conv2d(x, weight, padding=1)
    pointwise = weight[:, :, :1, :1].contiguous()  # has both layouts
    assert cuconv.conv2d(x, pointwise, precision="tf32").is_contiguous(memory_format=torch.channels_last)
    assert cuconv.conv2d(x.contiguous(), pointwise).is_contiguous()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_prepared_weights_of_either_layout_serve_inputs_of_both_in_tf32(layout, cuda):
    x, weight = tensors(torch.float32)
    layer = cuconv.prepare(weight.contiguous(memory_format=layout), padding=1, precision="tf32")
    for one in (x, x.contiguous(), x):
        out = layer(one)
        assert out.is_contiguous(memory_format=torch.channels_last) == (one is x)
        launches, *_ = Recorder.enqueued[-1]
        assert launches[-1].macros.get("TF32", 0) == (one is x)
    assert cuconv.prepare(weight, padding=1)(x.contiguous()).is_contiguous()


def test_a_slice_of_channels_is_written_by_the_kernel(cuda):
    x, weight = tensors()
    whole = torch.zeros(2, 48, 6, 5, dtype=x.dtype).to(memory_format=torch.channels_last)
    cuconv.conv2d(x, weight, padding=1, out=whole[:, 8:32])
    (launch,), _, addresses = Recorder.enqueued[-1]
    assert whole[:, 8:32].data_ptr() in addresses and 48 in launch.arguments


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": torch.zeros(2, 24, 6, 5, dtype=torch.float16)}, "channels last"),
        ({"bias": torch.zeros(24)}, "use one type"),
        ({"precision": "tf32"}, "precision='tf32'"),
        ({"precision": "bf16"}, "precision='bf16'"),
    ],
)
def test_what_does_not_fit_the_input_s_type_is_refused(options, words, cuda):
    x, weight = tensors()
    with pytest.raises(UnsupportedProblem, match=words):
        cuconv.conv2d(x, weight, padding=1, **options)


def test_float32_is_not_computed_in_half_precision(cuda):
    with pytest.raises(UnsupportedProblem, match="precision='fp16'"):
        cuconv.conv2d(torch.zeros(1, 8, 4, 4), torch.zeros(8, 8, 1, 1), precision="fp16")
