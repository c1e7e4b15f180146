"""Arithmetic of cost models, whose numbers are NumPy arrays: an element for each of many configurations.

The models use NumPy's functions, and multiply by a truth value instead of branching. The same model then takes one
configuration, whose numbers are plain, or many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Number = Any
"""A number, or an array of numbers."""


def norm(*times: Number) -> Number:
    """The Euclidean norm, which combines times that overlap: about the largest of them, but smooth."""
    total = times[0] * times[0]
    for us in times[1:]:
        total = total + us * us
    return np.sqrt(total)
