"""Arithmetic on a number or on a NumPy array of numbers, one for each of many configurations.

Cost models use these functions, and multiply by a truth value instead of branching. The same model then takes one
launch configuration or many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Number = Any
"""A number, or an array of numbers."""


def larger(a: Number, b: Number) -> Number:
    """The larger number of each pair."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smaller(a: Number, b: Number) -> Number:
    """The smaller number of each pair."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def norm(*times: Number) -> Number:
    """The Euclidean norm, which combines times that overlap: about the largest of them, but smooth."""
    total = times[0] * times[0]
    for us in times[1:]:
        total = total + us * us
    return total**0.5


def either(condition: Number, a: Number, b: Number) -> Number:
    """The first number of each pair where a condition holds, else the second."""
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else (a if condition else b)


def as_number(truth: Number) -> Number:
    """1 where a condition holds, else 0."""
    return truth * 1
