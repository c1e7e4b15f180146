"""Every algorithm has configurations that fit the device, launches that suit the kernels, and refusals."""

import re
from itertools import product
from math import ceil, gcd, prod

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common import finish_output
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.pieces import axes
from cuconv.algorithms.fp16x3.flattened import flattened
from cuconv.core.activation import activation_of
from cuconv.core.launch import BIAS, FLAGS, INPUT, OUTPUT, PACKED, RESIDUAL, WEIGHT, WORKSPACE
from cuconv.device import A100, H200, DeviceSpec
from cuconv.runtime.compiler import INCLUDES
from tests.cuconv.algorithms.problems import (
    DEVICES,
    PROBLEMS,
    TYPICAL,
    in_precision,
    one_by_one,
    typical_problem,
)
from tests.cuconv.layers import problems_of

B200 = DeviceSpec("NVIDIA B200", (10, 0), 148)
HOPPER_ONLY = [
    "fp16x3",
    "fp16x3_pointwise",
    "fp16x3_winograd",
    "tf32x3_wgmma",
    "nhwc_wgmma",
    "nhwc_split",
    "nhwc_depthwise",
    "nhwc_grouped",
    "nhwc_stem",
    "nhwc_window",
]
WAITING, AT_A_TIME = HOPPER_ONLY[:3], {1: 132, 2: 2 * 66, 3: 3 * 39}  # blocks of an H200 by the size of clusters
OTHERS = [one for sweep in ("strided", "grouped", "fully_connected") for one in problems_of(sweep)[::5]]
STEM = ConvProblem(8, 3, 224, 224, 64, 3, 3, 1, 1)  # the first layer of a network


@pytest.mark.parametrize(
    ("name", "precision", "device"),
    [
        pytest.param(name, precision, device, id=f"{name}-{precision}-{device.arch}")
        for name, algorithm in ALGORITHMS.items()
        for precision, device in product(algorithm.precisions, DEVICES)
        if device.is_hopper or name not in HOPPER_ONLY
    ],
)
def test_candidates_differ_in_print_and_fit_the_device(name, precision, device):
    algorithm, computed = ALGORITHMS[name], 0
    for problem in in_precision(precision, [*PROBLEMS, *OTHERS, typical_problem(name)]):
        try:
            configs = algorithm.candidates(problem, device)
        except UnsupportedProblem:
            continue
        computed += 1
        assert len({str(config) for config in configs}) == len(configs), "candidates.csv.gz has them as they print"
        for config in configs:
            for launch in algorithm.launches(problem, config):
                static = algorithm.static_shared_bytes(launch.macros) if launch.source == algorithm.source else 0
                assert launch.shared_bytes + static <= device.shared_bytes_per_block
                assert 1 <= launch.blocks < 2**31 and launch.threads % 32 == 0 and 32 <= launch.threads <= 1024
            if name in WAITING:  # its blocks wait for each other, so that all of them must run at the same time
                assert config.blocks <= AT_A_TIME[getattr(config, "cluster", 1)]
            packs = any(WORKSPACE in launch.arguments for launch in algorithm.launches(problem, config))
            assert config.workspace_bytes == 0 or packs, "memory that no kernel gets"
            assert algorithm.predicted_us(problem, device, config) > 0
    assert computed > 2


@pytest.mark.parametrize("device", [A100, B200], ids=lambda device: device.arch)
@pytest.mark.parametrize("name", HOPPER_ONLY)
def test_an_algorithm_of_hopper_s_instructions_is_refused_elsewhere(name, device):
    assert ALGORITHMS[name].variants(device.arch) == []
    with pytest.raises(UnsupportedProblem, match=device.arch):
        ALGORITHMS[name].configure(typical_problem(name), device)


# The arguments of kernels.


def parameters(launch):
    """The names of a kernel's parameters, as its source declares them for the macros of a launch."""
    is_general = launch.kernel == "depthwise" and launch.macros["GENERAL"]
    source = launch.source.with_name("general.cuh") if is_general else launch.source
    text = source.read_text() + (INCLUDES / "common" / "weight_packing.cuh").read_text()
    (declared,) = re.findall(rf"\b{launch.kernel}\((const float[^{{]*)\) {{", text)
    for macro, more in (
        ("RESIDUAL", ", residual"),
        ("PREPARED", ", packed, flags"),
        ("PIECES", ", kernel_h, kernel_w, tap_phases_h, tap_phases_w"),
    ):
        declared = re.sub(rf"\s{macro}_ARGUMENTS?", more * launch.macros.get(macro, 0), declared)
    return [one.split()[-1] for one in declared.split(",")]


def meanings(p, config, launch, options):
    """The argument of each parameter's name, for a problem p."""
    found = {name: getattr(p, name) for name in ("pad_h", "pad_w", "out_h", "out_w", "groups", "group_channels")}
    found |= {name: getattr(p, name) for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")}
    found |= {"input": INPUT, "weight": WEIGHT, "bias": BIAS, "output": OUTPUT, "packed": PACKED, "flags": FLAGS}
    found |= {"memory": WORKSPACE, "workspace": WORKSPACE, "residual": RESIDUAL if options.residual else 0}
    found |= {"images": p.n, "height": p.h, "width": p.w, "kernel_h": p.kh, "kernel_w": p.kw}
    found |= {"channels": p.group_channels, "filters": p.group_filters, "depth": prod(p.input_shape[1:])}
    found |= {"output_planes": p.m, "activation": options.activation.kind, "numbers": options.activation.packed_numbers}
    found |= {"input_image": p.c * p.h * p.w, "input_group": p.group_channels * p.h * p.w}
    found |= {"output_image": p.m * p.out_pixels, "weight_group": prod(p.weight_shape) // p.groups}
    for axis, stride, dilation in (("h", p.stride_h, p.dilation_h), ("w", p.stride_w, p.dilation_w)):
        found[f"tap_phases_{axis}"] = stride // gcd(stride, dilation)
    if launch.kernel == "pack_weights":  # it clears the flags of blocks that may publish partial sums
        found["blocks"] = config.blocks if getattr(config, "tail_split_k", 2) > 1 else 0
    if launch.kernel == "fp16x3":
        flat, cut, (rows, columns) = flattened(p, config.cut), config.cut, axes(p)
        found |= {"spatial_tiles": ceil(flat.positions / config.tile.positions)}
        of_pieces = {"strips": flat.strips}
        of_pieces |= {"row_phases": min(rows.phases, p.out_h), "column_phases": min(columns.phases, p.out_w)}
        divisors = {"pitch": flat.pitch, "image_rows": flat.rows} | of_pieces
        found |= divisors | {f"by_{name}": packed_divisor(divisor) for name, divisor in divisors.items()}
        steps = {"output_phases_h": rows.phases, "output_phases_w": columns.phases}
        steps |= {"used_tap_phases_h": rows.used, "used_tap_phases_w": columns.used}
        found |= steps | {"strip_columns": cut and cut.columns}
        found |= {"pieces_in_row": cut and columns.pieces(cut.kw)}
        found |= {"pieces": cut and rows.pieces(cut.kh) * columns.pieces(cut.kw)}
        unread = {"pieces", "pieces_in_row", "strip_columns", *steps, *of_pieces}
        unread |= {f"by_{name}" for name in of_pieces}
        found |= {} if cut else dict.fromkeys(unread, 0)
    if launch.kernel == "tf32x3_wgmma":
        filter_tiles = ceil(p.group_filters / config.tile.filters)
        tiles = filter_tiles * ceil(p.n * p.out_pixels / config.tile.pixels)
        divisors = {"group_tiles": tiles, "filter_tiles": filter_tiles, "out_pixels": p.out_pixels, "out_w": p.out_w}
        found |= {f"by_{name}": packed_divisor(divisor) for name, divisor in divisors.items()}
    if launch.kernel == "tf32x3_shallow":
        found["filter_blocks"] = ceil(p.m / config.block_filters)
    if launch.kernel == "depthwise":
        (down, along), filters = config.strip.grid(p), config.strip.filters
        divisors = {"strips_x": along, "strips_y": down, "layer_units": p.m // filters}
        divisors["group_units"] = p.group_filters // filters
        found |= divisors | {f"{name}_packed": packed_divisor(divisor) for name, divisor in divisors.items()}
        found |= {"batches": config.batches(p)} if config.groups else {}
        found |= {"units": p.n * p.m // filters, "block_groups": config.groups, "buffers_of_block": config.buffers}
    if launch.kernel == "plain_pointwise":
        found |= {"plane": p.out_pixels, "plane_packed": packed_divisor(p.out_pixels)}
        found |= {"filter_blocks": ceil(p.m / config.block_filters)}
    if launch.kernel == "direct":
        tile_h, tile_w = config.threads_y * config.rows_of_thread, 4 * config.threads_x
        filter_blocks = ceil(p.group_filters / config.filters_of_thread)
        found |= {"tiles_x": ceil(p.out_w / tile_w), "tiles_y": ceil(p.out_h / tile_h), "filter_blocks": filter_blocks}
        columns = min(p.stride_w, p.kw) * (tile_w + ceil(p.kw / p.stride_w) - 1)
        found |= {"columns": columns, "columns_packed": packed_divisor(columns)}
        found |= {"rows": (tile_h - 1) * p.stride_h + p.kh}
    return found


# Parameters whose values other tests check, and those of a layout that the source alone explains.
UNCHECKED = {"batches", "strips", "share_units", "evict_first", "vector", "aligned", "pitch", "slots"}
LEAKY = activation_of(("leaky_relu", 0.3))
LARGE_FILTER = ConvProblem(2, 20, 13, 9, 17, 4, 5, 1, 3)  # numbers that differ, also from those of the output
ANY_GEOMETRY = ConvProblem(2, 10, 14, 19, 36, 3, 4, 1, 5, "fp32", 2, 3, 4, 5, groups=2, more_h=3, more_w=-4)


@pytest.mark.parametrize("options", [CallOptions(activation=LEAKY), CallOptions(residual=True, packed=True)], ids=str)
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fp16x3", LARGE_FILTER),
        ("fp16x3", ConvProblem(2, 20, 13, 9, 17, 9, 8, 1, 3)),
        ("fp16x3", ConvProblem(2, 20, 40, 61, 17, 5, 9, 1, 3, "fp32", 2, 4, 5, 6)),
        ("fp16x3", ConvProblem(2, 20, 13, 9, 17, 4, 5, 3, 4, more_h=-1, more_w=-4)),
        ("fp16x3", ConvProblem(2, 20, 13, 9, 17, 3, 3, 0, 1, "fp32", 2, 2, more_h=1, more_w=-1)),
        ("fp16x3_winograd", LARGE_FILTER),
        ("fp16x3_winograd", ConvProblem(2, 40, 13, 9, 17, 3, 3, 2, 1, more_h=-1, more_w=2)),
        ("fp16x3_pointwise", ConvProblem(3, 70, 13, 7, 37, 1, 1)),
        ("tf32x3_gemm", ANY_GEOMETRY),
        ("tf32x3_wgmma", ANY_GEOMETRY),
        ("tf32x3_shallow", ConvProblem(2, 3, 12, 16, 17, 3, 3, 1, 1)),
        ("depthwise", ConvProblem(2, 24, 10, 20, 24, 3, 3, 1, 1, groups=6)),
        ("depthwise", ConvProblem(2, 12, 10, 20, 24, 3, 5, 1, 2, "fp32", 2, 1, 1, 3, groups=6)),
        ("depthwise", ConvProblem(2, 12, 10, 20, 12, 3, 3, 0, 1, "fp32", 2, 2, groups=12, more_h=1, more_w=-1)),
        ("direct", ConvProblem(2, 12, 10, 20, 24, 3, 5, 1, 2, "fp32", 2, 3, groups=6)),
        ("direct", ConvProblem(2, 7, 11, 18, 5, 3, 3, 1, 0)),
        ("direct", ConvProblem(2, 7, 11, 18, 5, 3, 3, 1, 0, more_h=-1, more_w=2)),
        ("plain_pointwise", ConvProblem(3, 20, 5, 7, 33, 1, 1)),
        ("gemv", ConvProblem(3, 16, 5, 7, 33, 5, 7)),
    ],
)
def test_arguments_are_in_the_order_of_the_kernel_s_parameters(name, problem, options):
    algorithm = ALGORITHMS[name]
    for config in algorithm.candidates(problem, H200):
        for launch in algorithm.launches(problem, config, options):
            if launch.source == finish_output.SOURCE:
                continue
            fulfilled = algorithm.fulfilled(problem, config, options)
            wanted = meanings(problem, config, launch, fulfilled)
            for parameter, argument in zip(parameters(launch), launch.arguments, strict=True):
                if parameter in wanted:
                    assert argument == wanted[parameter], (launch.kernel, parameter)
                elif parameter not in UNCHECKED:
                    assert argument == getattr(config, parameter), (launch.kernel, parameter)
            if launch.kernel == algorithm.name:
                assert (launch.threads, launch.blocks) == (config.threads, config.blocks)


VECTORS = {  # by algorithm: the macro or the argument that tells whether elements are moved together
    "depthwise": ("VECTOR", "OUT_VECTOR"),
    "tf32x3_shallow": ("ADJACENT", "VECTOR"),
}


@pytest.mark.parametrize(
    ("name", "problem", "aligned", "vectors"),
    [
        ("tf32x3_gemm", one_by_one(64), True, (1,)),
        ("tf32x3_gemm", one_by_one(64), False, (0,)),
        ("tf32x3_gemm", one_by_one(66), True, (0,)),
        ("tf32x3_wgmma", one_by_one(64), True, (1,)),
        ("tf32x3_wgmma", one_by_one(64), False, (0,)),
        ("tf32x3_wgmma", one_by_one(66), True, (0,)),
        ("gemv", ConvProblem(1, 64, 1, 1, 8, 1, 1), True, (4,)),
        ("gemv", ConvProblem(1, 64, 1, 1, 8, 1, 1), False, (1,)),
        ("gemv", ConvProblem(1, 66, 1, 1, 8, 1, 1), True, (1,)),
        ("tf32x3_shallow", STEM, True, (1, 1)),
        ("tf32x3_shallow", STEM, False, (1, 0)),  # neighbours share the window that they see, whatever the alignment
        ("tf32x3_shallow", ConvProblem(1, 3, 8, 10, 8, 3, 3), True, (1, 0)),  # the output is narrower than the input
        # as wide as the input, but the windows are not about their outputs
        ("tf32x3_shallow", ConvProblem(1, 3, 8, 12, 8, 3, 3, 1, 2, more_w=-2), True, (1, 0)),
        ("tf32x3_shallow", ConvProblem(1, 3, 8, 12, 8, 3, 3, 1, 1, more_h=-1), True, (1, 1)),
        ("tf32x3_shallow", one_by_one(16), True, (1, 1)),
        ("tf32x3_shallow", one_by_one(16), False, (0, 0)),
        ("tf32x3_shallow", one_by_one(16, hw=7), True, (0, 0)),  # a plane of 49 pixels
    ],
)
def test_elements_are_moved_together_where_rows_and_alignment_allow(name, problem, aligned, vectors):
    config = ALGORITHMS[name].configure(problem, H200)
    launch = ALGORITHMS[name].launches(problem, config, CallOptions(aligned))[-1]
    if name == "tf32x3_gemm":  # it has one kernel for both
        assert launch.arguments[parameters(launch).index("vector")] == vectors[0]
    else:
        assert tuple(launch.macros[macro] for macro in VECTORS.get(name, ("VECTOR",))) == vectors


@pytest.mark.parametrize(
    ("name", "device"),
    [*product(("tf32x3_shallow", "depthwise", "direct"), (H200, A100)), *product(HOPPER_ONLY, [H200])],
)
def test_launches_overlap_where_the_device_allows_it(name, device):
    algorithm, problem = ALGORITHMS[name], typical_problem(name)
    launches = algorithm.launches(problem, algorithm.configure(problem, device))
    assert {launch.overlap for launch in launches} == {device.has_dependent_launch}
    assert all(launch.macros == launches[0].macros for launch in launches), "they are compiled together"


# Refusals.


@pytest.mark.parametrize(
    ("name", "problem", "value"),
    [
        ("fp16x3", ConvProblem(1500, 64, 112, 112, 8, 3, 3), "input bytes"),
        ("fp16x3", ConvProblem(8, 64, 14, 14, 64, 1, 1), "1x1"),
        ("fp16x3", ConvProblem(8, 64, 14, 14, 64, 1, 1, 1, 1), "1x1"),
        ("fp16x3_winograd", ConvProblem(1, 8, 9, 9, 8, 3, 3, 3, 1), "padding of 3 rows"),
        ("fp16x3_winograd", ConvProblem(1, 64, 9, 9, 8, 3, 3, 1, 1, more_h=1), "more padding below"),
        ("fp16x3_winograd", ConvProblem(1, 16, 9, 9, 8, 7, 3, 1, 1), "7 rows"),
        ("fp16x3_winograd", ConvProblem(1, 8, 9, 9, 8, 3, 7, 1, 1), "7 columns"),
        ("fp16x3_winograd", ConvProblem(1500, 64, 112, 112, 8, 3, 3), "input bytes"),
        ("fp16x3_winograd", one_by_one(64), "1 columns"),
        ("fp16x3_winograd", ConvProblem(1, 8, 9, 9, 8, 1, 5, 0, 2), "one row"),
        ("fp16x3_winograd", ConvProblem(1, 31, 9, 9, 8, 3, 3), "279 products"),
        ("fp16x3_winograd", ConvProblem(1, 8, 9, 5, 8, 3, 3), "rows of 3 outputs"),
        ("fp16x3_pointwise", ConvProblem(1, 8, 9, 9, 8, 3, 3, 1, 1), "1x1 without padding"),
        ("fp16x3_pointwise", ConvProblem(1, 8, 9, 9, 8, 1, 1, 1, 0), "1x1 without padding"),
        ("fp16x3_pointwise", ConvProblem(1, 8, 9, 9, 8, 1, 1, more_w=1), "1x1 without padding"),
        ("fp16x3_pointwise", ConvProblem(2**18, 8, 100, 100, 8, 1, 1), "pixels in the batch"),
        ("fp16x3_pointwise", ConvProblem(1, 8, 2**15, 2**14, 8, 1, 1), "2147483648 bytes"),
        ("tf32x3_gemm", ConvProblem(1, 3, 40, 40, 8, 32, 2), "32 rows"),
        ("tf32x3_gemm", ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels"),
        ("tf32x3_gemm", ConvProblem(1, 2048, 1024, 1024, 8, 3, 3), "2147483648 input elements"),
        # The filter's last tap lies two rows beyond the input.
        ("tf32x3_gemm", ConvProblem(1, 2, 1, 2**30 - 1, 1, 3, 1, 1, 0), "3221225470 input elements"),
        ("tf32x3_gemm", ConvProblem(1, 1, 4096, 4096, 2**24, 1, 1), "a grid of"),
        ("tf32x3_wgmma", ConvProblem(1, 60000, 3, 3, 8, 3, 3, 1, 1), "540000 weights"),
        ("tf32x3_wgmma", ConvProblem(1, 3, 40, 40, 8, 2, 32), "32 columns"),
        ("tf32x3_wgmma", ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels"),
        ("tf32x3_wgmma", ConvProblem(1, 512, 1024, 1024, 8, 3, 3), "536870912 input elements"),
        ("tf32x3_shallow", one_by_one(33), "33 weights"),
        ("tf32x3_shallow", ConvProblem(1, 3, 9, 9, 8, 3, 3, 1, 1), "rows of 9 outputs"),
        ("tf32x3_shallow", one_by_one(16, pad=1, hw=7), "rows of 9 outputs"),
        ("tf32x3_shallow", one_by_one(16, hw=5), "25 pixels"),
        ("tf32x3_shallow", one_by_one(16, m=20000), "20000 filters"),
        ("depthwise", TYPICAL, "one group"),
        ("depthwise", ConvProblem(1, 18, 9, 9, 18, 3, 3, 1, 1, groups=2), "9 channels"),
        ("depthwise", ConvProblem(1, 4, 9, 40, 4, 1, 32, groups=4), "32 columns"),
        ("depthwise", ConvProblem(1, 4, 9, 9, 4, 1, 1, stride_h=2**25, groups=4), "rows of stride"),
        ("depthwise", ConvProblem(1, 2, 9, 9, 2, 1, 1, 2**29, 0, stride_h=2**20, groups=2), "rows in the padded image"),
        ("depthwise", ConvProblem(2**26, 2, 64, 64, 2, 1, 1, groups=2), "too many"),
        ("direct", TYPICAL, "128 filters"),
        ("direct", ConvProblem(1, 3, 9, 9, 2, 3, 3, dilation_h=2), "dilation 1"),
        ("direct", ConvProblem(1, 3, 9, 9, 2, 1, 1, stride_w=2**17), "columns of stride"),
        ("direct", ConvProblem(1, 1, 300, 300, 2, 257, 257), "257x257 filter"),
        ("direct", ConvProblem(1, 2, 1, 1, 2, 1, 1, 2**29, 0, stride_h=2**10), "rows in the padded image"),
        ("direct", ConvProblem(2**26, 64, 64, 64, 64, 1, 1, groups=64), "fits the grid"),
        ("plain_pointwise", one_by_one(65), "65 channels"),
        ("plain_pointwise", one_by_one(8, pad=1), "1x1 without padding"),
        ("plain_pointwise", ConvProblem(1, 8, 9, 9, 8, 1, 1, stride_w=2), "stride 1"),
        ("plain_pointwise", ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels"),
        ("gemv", ConvProblem(1, 64, 2, 1, 10, 1, 1), "as large as the input"),
        ("gemv", ConvProblem(1, 64, 1, 1, 10, 1, 1, 1, 0), "as large as the input"),
        ("gemv", ConvProblem(1, 64, 3, 3, 10, 3, 3, more_w=1), "as large as the input"),
        ("gemv", ConvProblem(1, 64, 1, 1, 10, 1, 1, groups=2), "as large as the input"),
        ("gemv", ConvProblem(1, 64, 3, 3, 10, 2, 2, dilation_h=2, dilation_w=2), "as large as the input"),
        ("gemv", ConvProblem(65, 64, 1, 1, 10, 1, 1), "65 images"),
        ("two_stage", ConvProblem(1, 1, 65536, 65536, 1, 1, 1), "beyond two_stage"),
        ("two_stage", ConvProblem(1, 1, 40000, 40000, 4096, 1, 1), "blocks, the limit is"),
    ],
)
def test_a_problem_beyond_the_limits_is_refused(name, problem, value):
    with pytest.raises(UnsupportedProblem, match=value):
        ALGORITHMS[name].configure(problem, H200)
