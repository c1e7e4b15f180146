"""Random layers are within their file's limits, differ, and are the same on every machine."""

import pytest
import yaml

from harness.cases.catalogue import CONFIGS, load_sweep
from harness.errors import CatalogueError

FILE = yaml.safe_load((CONFIGS / "random.yaml").read_text())


def load(folder, **changed):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"random": {**FILE["random"], "cases": 60, **changed}}))
    return load_sweep(path)


def test_layers_are_within_the_limits_and_spread_over_them(tmp_path):
    problems = [case.problem for case in load(tmp_path, cases=400).cases]
    assert len(set(problems)) == 400
    for problem in problems:
        assert 1 <= problem.n <= 32 and 3 <= problem.c <= 1024 and 1 <= problem.m <= 1024
        assert min(problem.h, problem.w) >= 4 and max(problem.h, problem.w) <= 1024
        assert problem.flop <= 400e9 and problem.min_bytes <= 2048 * 2**20
        assert problem.out_h > 0 and problem.out_w > 0
    for values in ([p.c for p in problems], [p.m for p in problems], [p.h for p in problems]):
        assert sum(value < 32 for value in values) > 60 and sum(value > 256 for value in values) > 20
    assert {(p.kh, p.kw) for p in problems} > {(1, 1), (3, 3), (1, 7), (7, 1)}
    assert 60 < sum(p.h != p.w for p in problems) < 200


def test_a_seed_gives_the_same_layers_and_another_one_others(tmp_path):
    first, again, other = (load(tmp_path, seed=seed).cases for seed in (3, 3, 4))
    assert first == again and not set(first) & set(other)
    # Random's numbers and the logarithm are those of every machine.
    assert [case.label for case in load_sweep("random").cases[:2]] == ["16-1-1x3-199-420-s2", "274-1-3x1-20-393-d4"]


def test_a_slice_keeps_what_it_names():
    whole = load_sweep("random").cases
    assert {case.batch for case in load_sweep("random", batches=[1]).cases} == {1}
    kept = load_sweep("random", filter_sizes=["1x7"]).cases
    assert kept == tuple(case for case in whole if (case.layer.k, case.layer.kw) == (1, 7))
    with pytest.raises(CatalogueError, match="99"):
        load_sweep("random", batches=[99])


@pytest.mark.parametrize(
    "changed",
    [{"plane": [8, 4]}, {"sizes": []}, {"cases": 0}, {"batch": [1, 2, 3]}, {"most_mib": 1, "plane": [999, 1000]}],
)
def test_wrong_values_are_refused(tmp_path, changed):
    with pytest.raises(CatalogueError, match="|".join(changed)):
        load(tmp_path, **changed)
