"""Configurations of the 1x1 kernel on FP16 tensor cores: pure functions of problem and device."""

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem, jit
from cuconv.algorithms.pointwise import fp16x3_pointwise
from cuconv.algorithms.pointwise.variants import SHIFTED, TEAMS, Form, most_filters, own_weights
from cuconv.algorithms.pointwise.tiles import loads_of, pitch, rows_of, tiles_of
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from tests.cuconv.algorithms.problems import PROBLEMS, one_by_one

HEAVY = ConvProblem(128, 256, 14, 14, 1024, 1, 1)
ODD = ConvProblem(3, 70, 13, 7, 37, 1, 1)
SMALL = ConvProblem(70, 832, 7, 7, 200, 1, 1)
DEEP = ConvProblem(1, 4200, 7, 7, 16, 1, 1, precision="tf32")  # so many chunks that barriers count
USUAL = [HEAVY, ODD, SMALL]
IN_TF32 = [DEEP, *(replace(problem, precision="tf32") for problem in USUAL)]
FIT = [*USUAL, *IN_TF32, *(problem for problem in PROBLEMS if problem.filter_area == 1 and not problem.pad_h)]


def test_candidates_fit_the_device_and_cover_the_problem():
    assert len(FIT) > 3
    for problem in FIT:
        configs = fp16x3_pointwise.candidates(problem, H200)
        assert len({str(config) for config in configs}) == len(configs)
        for config in configs:
            barrier_bytes = fp16x3_pointwise.BARRIER_BYTES * (config.teams * config.stages + config.weight_stages)
            static_bytes = max(barrier_bytes, fp16x3_pointwise.STATIC_BYTES)
            assert config.shared_bytes + static_bytes <= H200.shared_bytes_per_block
            assert config.stages >= (2 if config.resident or config.joint else 3)
            assert config.weight_stages >= (1 if config.resident else 2)
            assert 1 <= config.blocks <= min(H200.sm_count, tiles_of(problem, config))
            single = config.resident and config.weight_stages == 1
            most = most_filters(config.teams, config.channels, config.products, single, config.form)
            assert config.filters <= most
            assert fp16x3_pointwise.predicted_us(problem, H200, config) > 0


def test_weights_stay_where_all_chunks_have_a_place():
    for problem in FIT:
        for config in fp16x3_pointwise.candidates(problem, H200):
            if config.resident:
                assert config.weight_stages == ceil(problem.c / config.channels)


def test_blocks_split_weights_themselves_where_these_stay_and_registers_hold_them():
    own = [config for problem in FIT for config in fp16x3_pointwise.candidates(problem, H200) if config.own]
    assert {config.teams for config in own} == set(TEAMS)
    for config in own:
        assert config.resident and config.workspace_bytes == 0
        assert config.filters * config.channels * config.weight_stages <= 2**14 * 1.2
    assert own_weights(64, 64, 8, 2) == 128 and own_weights(80, 48, 7, 3) == 120


def test_a_block_that_splits_weights_itself_is_one_launch():
    def launches(problem, aligned):
        config = next(config for config in fp16x3_pointwise.candidates(problem, H200) if config.own)
        return fp16x3_pointwise.launches(problem, config, aligned, relu=False)

    for problem, aligned, own in (HEAVY, True, 4), (HEAVY, False, 1), (ODD, True, 1):
        (main,) = launches(problem, aligned)
        assert main.overlap and main.kernel == "fp16x3_pointwise" and main.macros["OWN"] == own


def test_other_filters_under_way_cost_another_split():
    few = ConvProblem(8, 256, 14, 14, 256, 1, 1)
    config = next(c for c in fp16x3_pointwise.candidates(few, H200) if c.own and (c.filters, c.pixels) == (64, 128))
    assert loads_of(few, config) == 1  # a tile each
    many = ConvProblem(16, 48, 55, 55, 800, 1, 1)
    config = next(c for c in fp16x3_pointwise.candidates(many, H200) if c.own and c.filters == 160)
    assert loads_of(many, config) == 2
    assert loads_of(many, replace(config, blocks=1)) == 5
    assert loads_of(many, replace(config, blocks=130)) == 1  # side by side, each with one of five tiles


def test_teams_share_tiles_where_these_are_few():
    few = ConvProblem(8, 512, 14, 14, 256, 1, 1)
    joint = [config for config in fp16x3_pointwise.candidates(few, H200) if config.joint]
    assert {config.teams for config in joint} == set(TEAMS)
    for config in joint:
        assert config.pixels == 64 and ceil(few.c / config.channels) >= 2 * config.teams
        assert config.resident or config.weight_stages == config.teams * config.stages
    assert fp16x3_pointwise.configure(few, H200).joint
    assert not any(config.joint for config in fp16x3_pointwise.candidates(HEAVY, H200) if config.filters > 64)


def of_144_filters(images):
    """Configurations of tiles of 128 pixels with all filters, with whole tiles alone and with a split last round."""
    problem = ConvProblem(images, 512, 14, 14, 144, 1, 1)
    found = [c for c in fp16x3_pointwise.candidates(problem, H200) if (c.filters, c.pixels) == (144, 128)]
    whole, split = ([c for c in found if (c.split_last > 1) is is_split] for is_split in (False, True))
    return problem, whole, split


def test_the_last_round_is_split_among_the_blocks_that_it_leaves_idle():
    problem, (whole,), (split,) = of_144_filters(128)  # 196 tiles: after a round of 132 there are 64
    assert (split.split_last, split.blocks) == (2, H200.sm_count)
    left_bytes = split.blocks * split.teams * (4 * 64 * split.filters + 4)  # sums, and a flag that says they are there
    assert split == replace(whole, split_last=2, workspace_bytes=whole.workspace_bytes + left_bytes)
    first, main = fp16x3_pointwise.launches(problem, split, aligned=True, relu=False)
    assert first.arguments[-1] == split.blocks and main.macros["SPLIT_LAST"] == 2
    split_us, whole_us = (fp16x3_pointwise.predicted_us(problem, H200, config) for config in (split, whole))
    assert split_us < whole_us


@pytest.mark.parametrize(("images", "parts"), [(64, []), (86, []), (87, [4]), (120, [2]), (150, []), (173, [4])])
def test_a_round_is_split_if_one_comes_before_and_half_of_the_sms_are_idle(images, parts):
    """98, 132, 134, 184, 230 and 265 tiles."""
    assert [config.split_last for config in of_144_filters(images)[2]] == parts


def test_more_filters_are_staged_only_where_that_costs_no_chunk():
    staged = set()
    for problem in FIT:
        for config in fp16x3_pointwise.candidates(problem, H200):
            staged.add(config.staged)
            more = 4 * config.teams * (max(fp16x3_pointwise.STAGED) - config.staged) * pitch(problem, config.form)
            if more:
                assert config.shared_bytes + more + fp16x3_pointwise.STATIC_BYTES > H200.shared_bytes_per_block
    assert staged == set(fp16x3_pointwise.STAGED)


def test_rows_are_shifted_where_they_begin_anywhere_and_are_long():
    def forms(h, w):
        problem = ConvProblem(16, 64, h, w, 64, 1, 1)
        return {config.form for config in fp16x3_pointwise.candidates(problem, H200)}

    assert forms(27, 27) == forms(13, 11) == forms(11, 14) == {Form.PLAIN, *SHIFTED}
    assert forms(28, 28) == {Form.PLAIN} and not forms(7, 7) & set(SHIFTED)


@pytest.mark.parametrize("form", SHIFTED)
def test_shifted_rows_cover_an_image_wherever_it_begins(form):
    """A team's pixels are 64 of its image; of these it writes from one multiple of the grain on to another one."""
    own = 65 - form.grain
    for plane in (129, 169, 176, 177, 178, 247, 248, 729, 3025):
        problem = ConvProblem(5, 64, 1, plane, 64, 1, 1)
        rows, rest = divmod(rows_of(problem, form), 5)
        assert rest == 0
        for start in range(form.grain):  # of the plane, off a multiple of the grain
            begins = [0, *(row * own + -(start + row * own) % form.grain for row in range(1, rows)), plane]
            for row, (begin, end) in enumerate(pairwise(begins)):
                first = row * own if row + 1 < rows else plane - 64
                assert first <= begin < end <= first + 64


def test_a_finer_grain_takes_fewer_rows():
    problem = ConvProblem(1, 64, 27, 27, 64, 1, 1)
    assert [rows_of(problem, form) for form in SHIFTED] == [13, 12]


def test_shifted_rows_need_no_alignment():
    problem = ConvProblem(16, 64, 27, 27, 64, 1, 1)
    for form in SHIFTED:
        config = next(c for c in fp16x3_pointwise.candidates(problem, H200) if c.form is form)
        for aligned in True, False:
            macros = fp16x3_pointwise.launches(problem, config, aligned, relu=False)[-1].macros
            assert (macros["SHIFTED"], macros["VECTOR"], macros["PLANE"]) == (form.grain, 0, 0)


def test_whole_images_are_of_small_planes_that_begin_anywhere():
    def has_images(c, h, w, m):
        configs = fp16x3_pointwise.candidates(ConvProblem(16, c, h, w, m, 1, 1), H200)
        return Form.IMAGES in {config.form for config in configs}

    assert has_images(64, 7, 7, 48) and has_images(36, 5, 7, 200) and has_images(64, 7, 9, 64)
    assert not has_images(64, 4, 8, 64) and not has_images(64, 8, 8, 64) and not has_images(64, 6, 6, 64)
    assert not has_images(64, 5, 5, 64) and not has_images(64, 5, 13, 64)
    assert not has_images(66, 7, 7, 64) and not has_images(64, 7, 7, 50)  # no whole vectors


def images(problem):
    return [c for c in fp16x3_pointwise.candidates(problem, H200) if c.form is Form.IMAGES]


def test_a_team_has_a_whole_image():
    teams = set()
    for config in images(SMALL):
        teams.add((config.teams, config.joint))
        tiles = ceil(70 / (1 if config.joint else config.teams)) * ceil(200 / config.filters)
        assert tiles_of(SMALL, config) == tiles
        pixels, staged = config.teams * config.stages * config.channels, config.teams * config.staged
        weights = config.weight_stages * (config.filters * config.channels + config.filters + config.channels)
        assert config.shared_bytes == 4 * (49 * (pixels + staged) + weights)
    assert {(2, False), (3, False), (2, True), (3, True)} == teams


def test_images_are_copied_at_once_where_operands_are_aligned():
    for config in images(SMALL):
        for aligned in True, False:
            macros = fp16x3_pointwise.launches(SMALL, config, aligned, relu=False)[-1].macros
            assert (macros["SHIFTED"], macros["VECTOR"], macros["PLANE"]) == (0, int(aligned), 49)


def test_images_are_copied_in_less_time_than_single_elements():
    busy = replace(SMALL, n=256)
    of_form = {}
    for config in fp16x3_pointwise.candidates(busy, H200):
        us = fp16x3_pointwise.predicted_us(busy, H200, config)
        of_form[config.form] = min(us, of_form.get(config.form, us))
    assert of_form[Form.IMAGES] < of_form[Form.PLAIN]


def test_filters_and_channels_are_padded_little():
    assert fp16x3_pointwise._filters(144, (160, 128, 64, 32)) == [144, 80, 48, 32]
    assert fp16x3_pointwise._filters(16, (160, 64)) == [16]
    assert fp16x3_pointwise._channels(48) == [16, 48] and fp16x3_pointwise._channels(96) == [32, 48]
    assert fp16x3_pointwise._channels(3) == [16]


def test_weights_are_split_first_and_both_launches_overlap():
    config = next(config for config in fp16x3_pointwise.candidates(ODD, H200) if not config.own)
    split, main = fp16x3_pointwise.launches(ODD, config, aligned=True, relu=True)
    assert (split.kernel, split.arguments) == ("split_weights", (WEIGHT, WORKSPACE, 37, 70, 0))
    assert (main.kernel, main.blocks, main.threads) == ("fp16x3_pointwise", config.blocks, 128 * (config.teams + 1))
    assert main.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, 3, 70, 13, 7, 37, 1)
    assert split.overlap and main.overlap and split.macros == main.macros and main.macros["OWN"] == 0


def test_vectors_need_aligned_operands_and_planes_of_whole_vectors():
    def vector(problem, aligned):
        config = fp16x3_pointwise.configure(problem, H200)
        return fp16x3_pointwise.launches(problem, config, aligned, relu=False)[-1].macros["VECTOR"]

    assert (vector(HEAVY, True), vector(HEAVY, False), vector(ODD, True)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 8, 9, 9, 8, 3, 3, 1, 1), "for filters of 1x1 without padding"),
        (ConvProblem(1, 8, 9, 9, 8, 1, 1, 1, 0), "for filters of 1x1 without padding"),
        (ConvProblem(2**18, 8, 100, 100, 8, 1, 1), "pixels in the batch, the limit of fp16x3_pointwise is"),
        (ConvProblem(1, 8, 2**15, 2**14, 8, 1, 1), "2147483648 bytes in a plane, the limit of fp16x3_pointwise is"),
    ],
)
def test_what_does_not_suit_the_kernel_is_refused_in_one_sentence(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        fp16x3_pointwise.configure(problem, H200)


def test_hopper_only():
    assert fp16x3_pointwise.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        fp16x3_pointwise.configure(one_by_one(64), A100)


def test_products_are_not_serialised():
    """The compiler says so where it has to wait after every instruction of the tensor cores."""
    for macros in fp16x3_pointwise.variants("sm_90a"):
        log = jit.cubin(fp16x3_pointwise.SOURCE, "sm_90a", macros).with_suffix(".log").read_text()
        assert "serialized" not in log, macros


def test_more_of_a_batch_never_costs_less():
    times = []
    for n in (1, 8, 32, 128):
        problem = ConvProblem(n, 256, 14, 14, 256, 1, 1)
        times.append(fp16x3_pointwise.predicted_us(problem, H200, fp16x3_pointwise.configure(problem, H200)))
    assert times == sorted(times)
