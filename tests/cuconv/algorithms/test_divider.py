"""Division by a number that stays, as kernels do it with the host's multiplier and shift."""

import pytest

from cuconv.algorithms.common.divider import packed_divisor


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 31, 49, 960, 2**16 + 1, 2**30 + 1, 2**31 - 1])
def test_the_packed_divisor_divides_every_dividend(divisor):
    packed = packed_divisor(divisor)
    multiplier, shift = packed % 2**32, packed >> 32
    assert 0 <= packed < 2**63
    for n in {0, 1, divisor - 1, divisor, 2 * divisor - 1, 2**31 // divisor * divisor - 1, 2**31 - 2, 2**31 - 1}:
        high = n * multiplier >> 32
        if 0 <= n < 2**31:
            assert high + n < 2**32 and (high + n) >> shift == n // divisor
