"""algorithm="batch_invariant": an image's output is bit for bit the same whatever the batch and its place there."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem
from cuconv.select import BATCH_INVARIANT
from harness.cases.catalogue import load_sweep

ODD = [
    ConvProblem(1, 17, 13, 13, 33, 3, 3, 1, 1),
    ConvProblem(1, 832, 7, 7, 48, 1, 1),
    ConvProblem(1, 3, 227, 227, 96, 11, 11, stride_h=4, stride_w=4),
    ConvProblem(1, 96, 14, 14, 96, 3, 3, 1, 1, groups=96),
    ConvProblem(1, 512, 1, 1, 1000, 1, 1),
]
PAPER = list(dict.fromkeys(replace(case.problem, n=1) for case in load_sweep("paper").cases))
BATCHES = (1, 2, 5, 8, 32, 67)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("layer", [*ODD, *PAPER], ids=lambda layer: layer.label)
def test_an_image_has_the_same_bits_in_every_batch(layer, precision):
    generator = torch.Generator("cuda").manual_seed(0)
    images = torch.randn((max(BATCHES), *layer.input_shape[1:]), generator=generator, device="cuda")
    weight = torch.randn(layer.weight_shape, generator=generator, device="cuda")

    def convolve(batch):
        return cuconv.conv2d(batch, weight, **layer.geometry, algorithm=BATCH_INVARIANT, precision=precision)

    whole = convolve(images)
    for n in BATCHES:
        for first in {0, (len(images) - n) // 2, len(images) - n}:
            part = convolve(images[first : first + n])  # its address is a multiple of 16 bytes or is not
            assert torch.equal(part.view(torch.int32), whole[first : first + n].view(torch.int32)), (n, first)
