"""Least squares on made-up times: the true constants are found, and the regret of a choice is what it says."""

from dataclasses import replace
from math import hypot, inf, log

import pytest

from cuconv.device import H200
from harness.tune import candidates, fit
from tests.harness.tune.toys import TOYS, TRUE, measured, rows, write

pytestmark = pytest.mark.usefixtures("toys")


@pytest.mark.parametrize("name", TOYS)
def test_a_fit_predicts_the_times_that_it_was_given(name):
    given = rows(name)
    before = fit.regret(given, H200, {name: TOYS[name].in_use})
    fitted = fit.fit(given, H200)
    after = fit.regret(given, H200, {name: fitted})
    assert 1 <= after.geometric <= max(1.001, (1 + before.geometric) / 2)
    predicted = [TOYS[name].predicted_us(row.problem, H200, row.config, fitted) for row in given]
    errors = [abs(log(us / row.us)) for us, row in zip(predicted, given, strict=True)]
    assert max(errors) < 0.2 and hypot(*errors) / len(errors) ** 0.5 < 0.07, "at most, and root mean square"


def test_slow_candidates_count_less_than_the_best_of_their_case():
    """Times of the slow half that follow no model do not spoil the prediction of the others."""
    given = rows("toy_large")
    best = {}
    for row in given:
        best[row.problem] = min(row.us, best.get(row.problem, row.us))
    disturbed = [row if row.us < 1.5 * best[row.problem] else replace(row, us=4 * row.us) for row in given]
    assert disturbed != given
    costs = fit.fit(disturbed, H200)
    kept = [row for row, was in zip(disturbed, given, strict=True) if row == was]
    errors = [abs(log(TOYS[r.algorithm].predicted_us(r.problem, H200, r.config, costs) / r.us)) for r in kept]
    assert hypot(*errors) / len(errors) ** 0.5 < 0.15


def test_regret_is_the_time_of_the_choice_over_the_best():
    given = rows()
    assert fit.regret([], H200, TRUE).cases == 0
    found = fit.regret(given, H200, TRUE)
    assert (found.geometric, found.worst) == (1, 1)
    assert found.cases == len({row.problem for row in given})
    first = given[0].problem
    chosen = min((row for row in given if row.problem == first), key=lambda row: row.us)
    second = sorted(row.us for row in given if row.problem == first)[1]
    slower = [replace(row, us=3 * row.us) if row is chosen else row for row in given]
    found = fit.regret(slower, H200, TRUE)
    assert found.at == first.label
    assert found.worst == pytest.approx(3 * chosen.us / second) and found.worst > 1
    assert found.geometric == pytest.approx(found.worst ** (1 / found.cases))


def test_a_closed_set_chooses_among_its_own_and_is_as_much_slower_as_it_says(monkeypatch):
    """The best configuration of the first problem is not in the set; all others run kernels of half the speed."""
    given = rows("toy_large")
    of_first = sorted((row for row in given if row.problem == given[0].problem), key=lambda row: row.us)
    best, second = of_first[:2]

    def slowdown(problem, device, config, options):
        return inf if (problem, config) == (best.problem, best.config) else 2.0

    monkeypatch.setattr(TOYS["toy_large"], "slowdown", slowdown, raising=False)
    found = fit.regret(of_first, H200, TRUE, closed=True)
    assert found.geometric == pytest.approx(2 * second.us / best.us)
    assert fit.regret(of_first, H200, TRUE).geometric == 1


def test_layers_are_held_out_at_every_batch_size():
    given = rows()
    training, held_out = fit.hold_out(given, seed=1)
    of_training, of_held_out = ({replace(row.problem, n=1) for row in some} for some in (training, held_out))
    assert not of_training & of_held_out
    assert len(of_held_out) == round(len(of_training | of_held_out) / 4)
    assert len(training) + len(held_out) == len(given)
    assert fit.hold_out(given, seed=1) == (training, held_out) != fit.hold_out(given, seed=2)


def test_rows_are_read_as_they_were_written_without_unknown_configurations_and_disturbed_ones(tmp_path):
    frame = candidates.read(write(tmp_path, measured()) / "candidates.csv.gz")
    found, known = fit.rows_of(frame, H200)
    assert found == rows() and known.equals(frame)
    frame.loc[0, "config"] = "tile=1x1"
    frame.loc[1, "algorithm"] = "unknown"
    frame.loc[2, ["run_1_us", "run_2_us", "run_3_us"]] = 2.0, 1.0, 1.5
    frame.loc[3, ["run_1_us", "run_2_us", "run_3_us"]] = 2.0, 1.0, 1.01
    found, known = fit.rows_of(frame, H200)
    assert len(found) == len(frame) - 3 and known.equals(frame[3:])
