"""A convolution with a stride and a dilation, put together from pieces, is torch's."""

import pytest
import torch
import torch.nn.functional as F

from cuconv.algorithms.common.pieces import Axis


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "kernel, stride, dilation",
    [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 2, 2), (7, 2, 4), (4, 4, 6), (2, 5, 1), (9, 6, 4)],
)
def test_pieces_of_all_phases_add_up_to_the_convolution(kernel, stride, dilation, size):
    axis = Axis(kernel, stride, dilation)
    inputs, taps = torch.randn(61, dtype=torch.float64), torch.randn(kernel, dtype=torch.float64)
    expected = F.conv1d(inputs[None, None], taps[None, None], stride=stride, dilation=dilation)[0, 0]
    found = torch.zeros_like(expected)
    for piece in range(axis.pieces(size)):
        phase_of_taps, first = piece % axis.used, piece // axis.used * size
        for tap in range(first, first + size):
            if (place := phase_of_taps + axis.tap_phases * tap) >= kernel:
                continue
            for output in range(len(found)):
                phase, number = output % axis.phases, output // axis.phases
                read = stride * phase + dilation * phase_of_taps + axis.step * (number + tap)
                found[output] += taps[place] * inputs[read]
    torch.testing.assert_close(found, expected)
