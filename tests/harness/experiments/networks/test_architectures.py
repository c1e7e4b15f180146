"""The harness's own networks: published numbers of parameters, outputs, and RAFT's code between its layers."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from harness.experiments.networks.architectures import HifiGan, OpticalFlow, UNet, VaeDecoder, YoloV8n
from harness.experiments.networks.models import randomise_batch_norm

# What builds a network, its millions of parameters, the shape of a small input, and that of its output.
NETWORKS = {
    "yolov8n": (YoloV8n, 3.15, (2, 3, 64, 96), (2, 144, 8 * 12 + 4 * 6 + 2 * 3)),
    "unet": (UNet, 31.03, (2, 1, 32, 48), (2, 2, 32, 48)),
    "vae_decoder": (VaeDecoder, 49.49, (2, 4, 3, 2), (2, 3, 24, 16)),
    "hifi_gan": (HifiGan, 13.93, (2, 80, 5), (2, 1, 1280)),
}


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_a_network_has_the_published_size_and_an_output_that_depends_on_all_of_its_input(name):
    build, millions, shape, output_shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(1e6 * millions, rel=0.005)
    x = torch.randn(shape)
    randomise_batch_norm(model, x)
    output = model(x)
    assert output.shape == output_shape and output.isfinite().all()
    assert torch.linalg.vector_norm(output[0] - output[1]) > 0.05 * torch.linalg.vector_norm(output[0])
    alone = model(x[1:])
    assert torch.allclose(output[1:], alone, rtol=1e-3, atol=1e-4 * float(output.std())), "images are independent"


class Update(nn.Module):
    """In the place of RAFT's recurrent layers: a flow that depends on all that they get."""

    hidden_state_size = 32

    def __init__(self):
        super().__init__()
        self.seen, self.mix = [], nn.Conv2d(32 + 64 + 4 * 49 + 2, 34, 1)

    def forward(self, hidden, context, correlations, flow):
        self.seen.append((correlations, flow))
        return self.mix(torch.cat([hidden, context, correlations, flow], 1)).split([32, 2], 1)


class Raft(nn.Module):
    """A RAFT of one layer in each of its parts."""

    def __init__(self):
        super().__init__()
        self.feature_encoder, self.context_encoder = nn.Conv2d(3, 8, 8, 8), nn.Conv2d(3, 96, 8, 8)
        self.update_block = Update()


def sampled(plane, x, y):
    """The value of a plane between its pixels, linear in x and in y; the pixels around the plane are zeros."""
    padded = np.pad(plane, 1)
    x, y = np.clip(x + 1, 0, padded.shape[1] - 1.000001), np.clip(y + 1, 0, padded.shape[0] - 1.000001)
    left, top = int(x), int(y)
    of_row = [(1 - x + left) * padded[row, left] + (x - left) * padded[row, left + 1] for row in (top, top + 1)]
    return (1 - y + top) * of_row[0] + (y - top) * of_row[1]


@torch.no_grad()
def test_raft_s_correlations_are_products_of_features_around_where_a_pixel_has_moved():
    torch.manual_seed(0)
    raft = Raft().double()
    images = torch.randn(1, 2, 3, 128, 136, dtype=torch.float64)
    OpticalFlow(raft).double()(images)
    first, second = (raft.feature_encoder(images[:, i])[0].numpy() for i in range(2))
    correlations, flow = (values[0].numpy() for values in raft.update_block.seen[1])
    assert np.abs(flow).max() > 0.1, "after the first update pixels have moved"
    for x, y in ((0, 0), (5, 7), (16, 15)):
        plane = np.einsum("c,chw->hw", first[:, y, x], second) / 8**0.5
        for level in range(4):
            h, w = plane.shape[0] // 2 * 2, plane.shape[1] // 2 * 2
            centre = ((x, y) + flow[:, y, x]) / 2**level
            expected = [sampled(plane, centre[0] + i, centre[1] + j) for i in range(-3, 4) for j in range(-3, 4)]
            np.testing.assert_allclose(correlations[49 * level : 49 * (level + 1), y, x], expected, atol=1e-4)
            plane = plane[:h, :w].reshape(h // 2, 2, w // 2, 2).mean((1, 3))


@torch.no_grad()
def test_raft_computes_in_the_precision_of_its_images():
    torch.manual_seed(0)
    model = OpticalFlow(Raft())
    images = torch.randn(2, 2, 3, 136, 128)
    expected = model.double()(images.double())
    assert expected.shape == (2, 2, 136, 128) and expected.dtype == torch.float64
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        output = model.to(dtype)(images.to(dtype))
        assert output.dtype == dtype
        error = torch.linalg.vector_norm(output - expected) / torch.linalg.vector_norm(expected)
        assert error < tolerance, dtype


@pytest.mark.skipif(not find_spec("torchvision"), reason="torchvision is not installed")
@torch.no_grad()
def test_raft_computes_what_torchvision_s_does():
    from torchvision.models.optical_flow import raft_small

    torch.manual_seed(0)
    raft = raft_small().eval()
    images = torch.randn(2, 2, 3, 128, 136)
    expected = raft(images[:, 0], images[:, 1])[-1]
    assert torch.allclose(OpticalFlow(raft)(images), expected, atol=1e-4 * float(expected.std()))
