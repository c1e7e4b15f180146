"""The progress bar: it stays within its total, and cannot end what it shows."""

import io
import warnings

import pytest

from harness import progress


@pytest.mark.parametrize("steps", [[0.1] * 3 + [0.7 + 1e-9], [2.0], [0.6, 0.6]])
def test_a_bar_is_never_shown_above_its_total(monkeypatch, steps):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    with warnings.catch_warnings(), progress.weighed(1.0) as bar:
        warnings.simplefilter("error")
        for step in steps:
            bar.update(step)
            bar.refresh()
    assert "100%" in screen.getvalue() and "-0" not in screen.getvalue()
