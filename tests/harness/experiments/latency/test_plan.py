"""The sizes that are drawn and the processes that are started."""

from harness.experiments.latency.plan import LEAST, MOST, STARTS, drawn_sizes, processes


def test_the_same_seed_draws_the_same_sizes_and_another_seed_others():
    assert drawn_sizes(40, 7) == drawn_sizes(40, 7) != drawn_sizes(40, 8)


def test_more_sizes_begin_with_the_same():
    assert drawn_sizes(40, 0)[:10] == drawn_sizes(10, 0)


def test_sizes_differ_and_lie_within_the_range_in_both_directions():
    sizes = drawn_sizes(1000, 0)
    assert len(set(sizes)) == 1000 and (224, 224) not in sizes
    for lengths in zip(*sizes, strict=True):
        assert min(lengths) >= LEAST and max(lengths) <= MOST
        assert min(lengths) < 110 and max(lengths) > 625, "the whole range is drawn from"
    assert sum(height > width for height, width in sizes) in range(400, 600), "neither is tied to the other"


def test_each_network_is_measured_by_torch_and_by_cuconv_with_an_empty_and_then_a_full_cache():
    found = processes(["a", "b"], ["torch", "cuconv"], ["size"], 40)
    assert [(one.network, one.contender, one.cache, one.rows) for one in found] == [
        (network, contender, cache, 40)
        for network in ("a", "b")
        for contender, cache in (("torch", "-"), ("cuconv", "empty"), ("cuconv", "full"))
    ]


def test_models_are_written_before_the_starts_which_take_turns():
    found = processes(["a"], ["torch", "cuconv"], ["start"], 40)
    made, starts = found[:3], found[3:]
    assert [(one.what, one.contender, one.cache, one.rows) for one in made] == [
        ("convert", "torch", "-", 0), ("convert", "cuconv", "empty", 1), ("convert", "cuconv", "full", 1),
    ]  # fmt: skip
    assert [(one.what, one.contender, one.cache) for one in starts] == STARTS * [
        ("start", "torch", "-"), ("start", "cuconv", "full"),
    ]  # fmt: skip
    assert {one.network for one in found} == {"resnet50"}


def test_one_contender_alone():
    assert {one.contender for one in processes(["a"], ["torch"], ["size", "start"], 1)} == {"torch"}
