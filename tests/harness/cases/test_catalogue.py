"""The catalogue is the paper's: its Table 1, its 602 configurations, and the networks' own numbers of layers."""

from collections import Counter

import pytest

from cuconv.core.problem import ConvProblem
from harness.cases import catalogue
from harness.cases.catalogue import (
    CONFIGS,
    MIB,
    NETWORKS,
    Case,
    CatalogueError,
    Layer,
    load_network,
    load_sweep,
    problem_labelled,
)
from tests.cuconv.layers import problems_of

# Table 1: distinct stride-1 layers of each network, and the share of each filter size in percent.
TABLE_1 = {
    "googlenet": (42, {1: 57.2, 3: 23.8, 5: 19.0}),
    "squeezenet": (21, {1: 71.4, 3: 28.6}),
    "alexnet": (4, {3: 75.0, 5: 25.0}),
    "resnet50": (12, {1: 66.7, 3: 33.3}),
    "vgg19": (9, {3: 100.0}),
}
PAPER_BATCHES = [1, 8, 16, 32, 64, 128, 256]


def layers_of(sweep):
    return list(dict.fromkeys(case.layer for case in sweep.cases))


@pytest.fixture(scope="module")
def paper():
    return load_sweep("paper")


@pytest.mark.parametrize("network", TABLE_1)
def test_a_network_has_the_layers_and_shares_of_table_1(network):
    number, shares = TABLE_1[network]
    sizes = Counter(layer.k[0] for layer in load_network(network) if layer.set == "paper")
    assert sizes.total() == number
    assert {k: 100 * n / number for k, n in sizes.items()} == pytest.approx(shares, abs=0.2)


def same(hw, c, m, k):
    """The shape of a convolution of stride 1 that keeps the size of its input, as NetworkLayer.shape."""
    return (hw, hw, c, m, k, k // 2, 1, 1, 1, k, k // 2)


def alexnet():
    """The layers conv2 to conv5."""
    return [same(27, 96, 256, 5), same(13, 256, 384, 3), same(13, 384, 384, 3), same(13, 384, 256, 3)]


# hw, input channels, #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj
INCEPTION = """
3a 28 192  64  96 128 16  32  32
3b 28 256 128 128 192 32  96  64
4a 14 480 192  96 208 16  48  64
4b 14 512 160 112 224 24  64  64
4c 14 512 128 128 256 24  64  64
4d 14 512 112 144 288 32  64  64
4e 14 528 256 160 320 32 128 128
5a  7 832 256 160 320 32 128 128
5b  7 832 384 192 384 48 128 128
"""


def googlenet():
    shapes = [same(56, 64, 64, 1), same(56, 64, 192, 3)]
    for row in INCEPTION.strip().splitlines():
        hw, c, one, red3, three, red5, five, proj = map(int, row.split()[1:])
        shapes += [same(hw, c, m, 1) for m in (one, red3, red5, proj)]
        shapes += [same(hw, red3, three, 3), same(hw, red5, five, 5)]
    return shapes


def squeezenet():
    """Fire modules 2 to 9, each a squeeze to s channels and two expands to four times as many, joined; conv10."""
    shapes, c = [], 96
    for hw, s in zip([55] * 3 + [27] * 4 + [13], [16, 16, 32, 32, 48, 48, 64, 64], strict=True):
        shapes += [same(hw, c, s, 1), same(hw, s, 4 * s, 1), same(hw, s, 4 * s, 3)]
        c = 8 * s
    return [*shapes, same(13, c, 1000, 1)]


def resnet50():
    """Bottlenecks of width m; in stages 3 to 5 the first 1x1 and the shortcut of the first block have stride 2."""
    shapes = [same(56, 64, 64, 1), same(56, 64, 256, 1)]  # the first 1x1 and the shortcut of stage 2
    for blocks, hw, m in zip((3, 4, 6, 3), (56, 28, 14, 7), (64, 128, 256, 512), strict=True):
        shapes += [same(hw, 4 * m, m, 1)] * (blocks - 1) + [same(hw, m, m, 3), same(hw, m, 4 * m, 1)] * blocks
    return shapes


def vgg19():
    shapes, c = [], 3
    for hw, m, depth in ((224, 64, 2), (112, 128, 2), (56, 256, 4), (28, 512, 4), (14, 512, 4)):
        shapes += [same(hw, c, m, 3)] + [same(hw, m, m, 3)] * (depth - 1)
        c = m
    return shapes


@pytest.mark.parametrize("definition", [alexnet, googlenet, squeezenet, resnet50, vgg19])
def test_layers_and_counts_are_those_of_the_definition(definition):
    network = load_network(definition.__name__)
    layers = [one for one in network if one.count and one.stride == 1 and one.set != "fully_connected"]
    counts = Counter({layer.shape: layer.count for layer in layers})
    assert counts == Counter(definition())


def test_only_the_first_1x1_of_a_strided_stage_has_no_count():
    """The paper reads it as a layer of stride 1 from the channels of the stage before."""
    layers = [layer for network in TABLE_1 for layer in load_network(network) if layer.stride == 1]
    uncounted = {name: layer.shape for layer in layers if not layer.count for name in layer.name}
    assert uncounted == {
        "c3_1x1a": same(28, 256, 128, 1),
        "c4_1x1a": same(14, 512, 256, 1),
        "c5_1x1a": same(7, 1024, 512, 1),
    }


def test_paper_sweep_has_602_configurations_of_86_layers(paper):
    sizes = Counter(layer.k for layer in layers_of(paper))
    assert sizes == {1: 45, 3: 32, 5: 9}
    assert len(paper.cases) == len({case.key for case in paper.cases}) == 602 == 86 * 7
    share_of_1x1 = sum(case.layer.k == 1 for case in paper.cases) / 602
    assert 100 * share_of_1x1 == pytest.approx(52.3, abs=0.05)
    assert (paper.name, paper.runs, paper.workspace_limit) == ("paper", 9, 1024 * MIB)


def test_cases_are_layer_major(paper):
    assert [case.batch for case in paper.cases] == PAPER_BATCHES * 86
    assert all(len({case.layer for case in paper.cases[i : i + 7]}) == 1 for i in range(0, 602, 7))
    assert all(case.problem.output_shape[2:] == (case.layer.h, case.layer.w) for case in paper.cases)


def test_full_sweep_adds_what_the_paper_leaves_out(paper):
    full = load_sweep("full", networks=TABLE_1)  # a network that is added to the sweep changes nothing here
    assert {case.key for case in paper.cases} < {case.key for case in full.cases}
    rest = {case.key[1:] for case in full.cases} - {case.key[1:] for case in paper.cases}
    owners = {name: [layer for layer in load_network(name) if layer.shape in rest] for name in TABLE_1}
    assert {name: len(layers) for name, layers in owners.items() if layers} == {"googlenet": 6, "resnet50": 4}
    names = [name for layers in owners.values() for layer in layers for name in layer.name]
    assert all("pool_proj" in name or "1x1a of blocks" in name for name in names)


def test_smoke_sweep_has_each_filter_size_and_is_small():
    smoke = load_sweep("smoke")
    assert Counter(layer.k for layer in layers_of(smoke)) == {1: 2, 3: 2, 5: 2}
    assert {case.batch for case in smoke.cases} == {1, 8}
    assert sum(case.problem.flop for case in smoke.cases) < 3e9


def test_a_case_is_a_problem_with_the_label_of_the_paper():
    sizes = {"h": 14, "w": 9, "c": 16, "m": 48, "k": 5, "kw": 3, "pad": 2, "pad_w": 1}
    case = Case(Layer(("net",), ("a", "b"), **sizes, stride=1, dilation=1, groups=1), batch=8)
    assert case.problem == ConvProblem(n=8, c=16, h=14, w=9, m=48, kh=5, kw=3, pad_h=2, pad_w=1)
    assert case.label == "14x9-8-5x3-48-16"
    assert case.key == (8, 14, 9, 16, 48, 5, 2, 1, 1, 1, 3, 1)


# Filters


def test_a_network_filter_keeps_all_owners_of_a_shape():
    layers = layers_of(load_sweep("paper", networks=["resnet50"]))
    assert len(layers) == 12
    assert {layer.networks for layer in layers} == {("resnet50",), ("googlenet", "resnet50")}


def test_filters_take_several_values_and_combine():
    sweep = load_sweep("paper", networks=["alexnet", "googlenet"], filter_sizes=[3, 5], layers=["conv2", "4c_5x5"])
    assert {case.layers_cell for case in sweep.cases} == {"conv2", "4b_5x5;4c_5x5"}
    assert {case.layer.networks for case in sweep.cases} == {("alexnet",), ("googlenet",)}


def test_batches_replace_those_of_the_sweep():
    sweep = load_sweep("paper", layers=["conv10"], batches=[3, 1])
    assert [case.batch for case in sweep.cases] == [3, 1]


@pytest.mark.parametrize(
    ("config", "filters", "parts"),
    [
        ("paper", {"networks": ["vgg19", "vgg16"]}, ["'vgg16'", *TABLE_1]),
        ("smoke", {"networks": ["vgg19"]}, ["'vgg19'", "--config full"]),
        ("paper", {"filter_sizes": [7]}, ["7", "1, 3, 5"]),
        ("paper", {"networks": ["vgg19"], "filter_sizes": [5]}, ["5"]),
        ("smoke", {"layers": ["conv9"]}, ["layer 'conv9'", "4a_3x3"]),
        ("paper", {"batches": [0]}, ["batch_sizes", "0"]),
        ("paper", {"batches": [4, 4]}, ["[4, 4]"]),
        ("paper", {"batches": []}, ["batch_sizes", "[]"]),
        ("paper", {"layers": []}, ["no layer", "--config paper --list"]),
        ("paper", {"layers": ["4a_3x"]}, ["'4a_3x'", "4a_3x3"]),
        ("papre", {}, ["'papre'", "paper"]),
    ],
)
def test_a_wrong_choice_is_told_with_what_is_allowed(config, filters, parts):
    with pytest.raises(CatalogueError) as error:
        load_sweep(config, **filters)
    assert [part for part in parts if part not in str(error.value)] == []


def test_a_network_that_a_sweep_lacks_can_be_measured_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "NETWORKS", tmp_path)
    write(tmp_path, "mine.yaml", "layers: [{name: a, hw: 4, c: 1, m: 1, k: 1, pad: 0}]")
    sweep = write(tmp_path, "some.yaml", f"networks: [{NETWORKS / 'alexnet.yaml'}]")
    with pytest.raises(CatalogueError, match=r"no network 'mine'.*--config configs/networks/mine\.yaml"):
        load_sweep(sweep, networks=["mine"])


@pytest.mark.parametrize("label", ["7-8-5-128-48", "27-1-1-256-64", "14-1-3-384-192"])
def test_a_label_is_read_as_the_paper_means_it(label):
    problem = problem_labelled(label)
    assert problem.label == label and (problem.out_h, problem.out_w) == (problem.h, problem.w)
    assert problem_labelled("7-8-5-128-48") == ConvProblem(8, 48, 7, 7, 128, 5, 5, 2, 2)


# A user's own files


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_plain_list_of_layers_is_a_sweep_and_may_set_what_a_sweep_sets(tmp_path):
    text = """
layers:
  - {name: wide, h: 20, w: 35, c: 5, m: 6, k: 7, pad: 3}
  - {hw: 9, c: 8, m: 12, k: 3, pad: 2, stride: 2, dilation: 2, groups: 4}
"""
    sweep = load_sweep(write(tmp_path, "my_layers.yaml", text))
    assert (sweep.name, sweep.runs, sweep.workspace_limit) == ("my_layers", 9, 1024 * MIB)
    assert [case.problem for case in sweep.cases] == [
        ConvProblem(1, 5, 20, 35, 6, 7, 7, 3, 3),
        ConvProblem(1, 8, 9, 9, 12, 3, 3, 2, 2, "fp32", 2, 2, 2, 2, 4),
    ]
    assert [(case.networks_cell, case.layers_cell) for case in sweep.cases] == [
        ("my_layers", "wide"),
        ("my_layers", "layer 2"),
    ]
    text += "batch_sizes: [2, 4]\nruns: 3\nworkspace_limit_mib: 5\n"
    sweep = load_sweep(write(tmp_path, "own.yaml", text))
    assert [case.batch for case in sweep.cases] == [2, 4] * 2
    assert (sweep.runs, sweep.workspace_limit) == (3, 5 * MIB)


def test_a_layer_may_have_batch_sizes_of_its_own(tmp_path):
    text = "layers: [{hw: 9, c: 8, m: 4, k: 3, pad: 1}, {hw: 9, c: 8, m: 4, k: 1, pad: 0, batch_sizes: [3, 7]}]"
    path = write(tmp_path, "own.yaml", text + "\nbatch_sizes: [1, 2]")
    assert [(case.layer.k, case.batch) for case in load_sweep(path).cases] == [(3, 1), (3, 2), (1, 3), (1, 7)]
    assert [case.batch for case in load_sweep(path, filter_sizes=[1]).cases] == [3, 7]
    assert [case.batch for case in load_sweep(path, batches=[5]).cases] == [5, 5], "asked for by the command"


def test_a_network_file_of_the_project_is_a_sweep_too():
    assert len(load_sweep(CONFIGS / "networks" / "alexnet.yaml").cases) == 8


def test_a_sweep_joins_a_network_by_name_with_one_by_path(tmp_path):
    (tmp_path / "nets").mkdir()
    mine_is_conv3 = "{name: mine, hw: 13, c: 256, m: 384, k: 3, pad: 1}"
    write(tmp_path / "nets", "tiny.yaml", f"layers: [{mine_is_conv3}, {{name: x, hw: 4, c: 1, m: 1, k: 1, pad: 0}}]")
    sweep = load_sweep(write(tmp_path, "both.yaml", "networks: [alexnet, nets/tiny.yaml]"))
    owners = {case.layers_cell: case.networks_cell for case in sweep.cases}
    assert owners == {
        "conv2": "alexnet",
        "conv3;mine": "alexnet;tiny",
        "conv4": "alexnet",
        "conv5": "alexnet",
        "x": "tiny",
    }


def test_sets_choose_among_the_layers_of_a_network(tmp_path):
    sweep = load_sweep(write(tmp_path, "rest.yaml", "networks: [resnet50, vgg19]\nsets: [network]"))
    assert len(sweep.cases) == 4
    assert {case.networks_cell for case in sweep.cases} == {"resnet50"}


# Strides, dilations and groups


def test_strided_layers_have_a_stride_and_grouped_ones_groups_or_a_dilation():
    strided, grouped = load_sweep("strided"), load_sweep("grouped")
    assert all(case.layer.stride > 1 and case.layer.groups == case.layer.dilation == 1 for case in strided.cases)
    assert all(case.layer.groups > 1 or case.layer.dilation > 1 for case in grouped.cases)
    assert {"alexnet", "googlenet", "resnet50", "squeezenet"} <= {n for c in strided.cases for n in c.layer.networks}


def test_fully_connected_layers_have_a_plane_of_one_pixel():
    sweep = load_sweep("fully_connected")
    assert all(case.layer.h == case.layer.w == case.layer.k == 1 and case.problem.is_dense for case in sweep.cases)
    assert {"1-1-1-4096-25088", "1-8-1-1000-2048", "1-32-1-24-72"} <= {case.label for case in sweep.cases}


def test_known_strides_and_groups():
    labels = {case.label for name in ("strided", "grouped") for case in load_sweep(name, batches=[1]).cases}
    assert {"224-1-7-64-3-s2", "224-1-11-96-3-s4", "56-1-3-128-128-s2", "14-1-1-2048-1024-s2"} <= labels
    assert {"112-1-3-32-32-g32", "7-1-7-768-768-g768", "28-1-3-256-256-g32", "33-1-3-256-2048-d12"} <= labels


def test_sweeps_of_the_paper_have_none_of_them():
    for name in ("paper", "full", "smoke", "unseen"):
        assert all(case.problem.is_dense for case in load_sweep(name).cases)


@pytest.mark.parametrize("sweep", ["paper", "strided", "grouped", "fully_connected"])
def test_the_library_s_tests_have_the_layers_of_the_sweeps(sweep):
    assert problems_of(sweep) == [case.problem for case in load_sweep(sweep).cases]
