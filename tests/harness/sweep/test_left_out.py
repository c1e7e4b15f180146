"""The cases whose fastest rival is unknown, as it needs more workspace than the sweep's limit."""

import pytest

from harness.sweep.left_out import left_out
from tests.helpers import measured, row

OVER = {"status": "workspace_exceeded", "provider": "cudnn", "detail": "needs 9 bytes, the limit is 1073741824"}


def rows(*rivals):
    """Rows of auto and of the rival "gemm" at batch 8 and 16, and rows of other rivals."""
    both = [made for n in (8, 16) for made in (row("auto", 5.0, batch=n), row("gemm", 9.0, provider="cudnn", batch=n))]
    return [*both, *rivals]


@pytest.mark.parametrize(("rivals", "marked"), [
    ([], [False, False]),
    ([row("fft", 4.0, provider="cudnn", batch=8), row("fft", batch=16, **OVER)], [False, True]),
    ([row("fft", 5.0, provider="cudnn", batch=8), row("fft", batch=16, **OVER)], [False, False]),
    ([row("fft", 4.0, provider="cudnn", batch=4), row("fft", batch=8, **OVER), row("fft", batch=16, **OVER)],
     [True, False]),
    ([row("fft", batch=8, **OVER), row("fft", 1.0, provider="cudnn", batch=16)], [False, False]),
    ([row("fft", batch=8, **OVER), row("fft", batch=16, **OVER)], [False, False]),
    ([row("fft", 1.0, provider="cudnn", batch=8, m=9), row("fft", batch=16, **OVER)], [False, False]),
    ([row("fft", 8.0, batch=8, **OVER), row("fft", 17.0, batch=16, **OVER)], [True, False]),
    ([row("fft", 4.0, provider="cudnn", batch=8), row("fft", 9.5, batch=16, **OVER)], [False, False]),
    ([row("fft", 4.0, batch=8, **OVER), row("fft", batch=16, **OVER)], [True, True]),
    ([row("bmm", 1.0, provider="cublas", batch=8), row("bmm", batch=16, **OVER | {"provider": "cublas"})],
     [False, False]),
], ids=["none", "faster by image", "slower by image", "from batch 4", "only later", "never ran", "another layer",
        "measured", "measured slower", "faster by an image over the limit", "no rival"])  # fmt: skip
def test_a_rival_over_the_limit_counts_if_its_time_or_that_at_a_smaller_batch_size_is_the_best(
    tmp_path, rivals, marked
):
    results = measured(tmp_path, rows(*rivals))
    mine = results.of_subject()
    found, limit = left_out(results)
    assert found[mine.batch.isin((8, 16)) & (mine.m == 32)].tolist() == marked
    over = any(made.status == OVER["status"] and made.provider == "cudnn" for made in rivals)
    assert limit == ("1 GiB" if over else "the limit")
