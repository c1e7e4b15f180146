"""Networks that torchvision does not have, in the sizes of their sources, with torch's random weights.

Each takes one tensor and returns one. They are YOLOv8 (Ultralytics, 2023), U-Net (Ronneberger et al., 2015), the
decoder of Stable Diffusion's autoencoder (Rombach et al., 2022), and the generator of HiFi-GAN (Kong et al., 2020).
torchvision's RAFT (Teed and Deng, 2020) is here too, since its own code between the layers cannot be measured.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvNormSilu(nn.Sequential):
    """A convolution of "same" padding without bias, batch norm and SiLU."""

    def __init__(self, channels: int, filters: int, size: int = 1, stride: int = 1):
        convolution = nn.Conv2d(channels, filters, size, stride, size // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(filters, eps=1e-3), nn.SiLU())


class C2f(nn.Module):
    """YOLOv8's CSP block: half of the channels pass bottlenecks, and every stage of them goes into the last layer."""

    def __init__(self, channels: int, filters: int, bottlenecks: int, residual: bool):
        super().__init__()
        half = filters // 2
        self.first, self.residual = ConvNormSilu(channels, filters), residual
        self.bottlenecks = nn.ModuleList(
            nn.Sequential(ConvNormSilu(half, half, 3), ConvNormSilu(half, half, 3)) for _ in range(bottlenecks)
        )
        self.last = ConvNormSilu((2 + bottlenecks) * half, filters)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        stages = [left, right]
        for bottleneck in self.bottlenecks:
            y = bottleneck(stages[-1])
            stages.append(stages[-1] + y if self.residual else y)
        return self.last(torch.cat(stages, 1))


class Sppf(nn.Module):
    """Spatial pyramid pooling: three max pools of 5x5 in a row, joined with their input, between two 1x1 layers."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.last = ConvNormSilu(channels, channels // 2), ConvNormSilu(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        stages = [self.first(x)]
        for _ in range(3):
            stages.append(self.pool(stages[-1]))
        return self.last(torch.cat(stages, 1))


class YoloV8n(nn.Module):
    """YOLOv8n, the detector of depth 0.33 and width 0.25: N x 3 x H x W to N x 144 x boxes.

    H and W are multiples of 32; at 640x640 there are 8400 boxes. The 144 values of a box are the raw ones of the head:
    four sides of 16 bins each, and 80 classes. Their decoding and the suppression of boxes are left out.
    """

    def __init__(self, bins: int = 16, classes: int = 80):
        super().__init__()
        self.stem = ConvNormSilu(3, 16, 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNormSilu(filters // 2, filters, 3, 2), C2f(filters, filters, bottlenecks, residual=True))
            for filters, bottlenecks in ((32, 1), (64, 2), (128, 2), (256, 1))
        )
        self.pyramid = Sppf(256)
        self.up = nn.ModuleList([C2f(256 + 128, 128, 1, residual=False), C2f(128 + 64, 64, 1, residual=False)])
        self.strided = nn.ModuleList([ConvNormSilu(64, 64, 3, 2), ConvNormSilu(128, 128, 3, 2)])
        self.down = nn.ModuleList([C2f(64 + 128, 128, 1, residual=False), C2f(128 + 256, 256, 1, residual=False)])
        self.sides, self.classes = (
            nn.ModuleList(self._head(channels, hidden, values) for channels in (64, 128, 256))
            for hidden, values in ((64, 4 * bins), (80, classes))
        )

    @staticmethod
    def _head(channels: int, hidden: int, values: int) -> nn.Sequential:
        layers = ConvNormSilu(channels, hidden, 3), ConvNormSilu(hidden, hidden, 3)
        return nn.Sequential(*layers, nn.Conv2d(hidden, values, 1))

    def forward(self, x: Tensor) -> Tensor:
        scales = [self.stem(x)]
        for stage in self.stages:
            scales.append(stage(scales[-1]))
        of_8, of_16, of_32 = *scales[2:4], self.pyramid(scales[4])  # strides
        of_16 = self.up[0](torch.cat([F.interpolate(of_32, scale_factor=2.0), of_16], 1))
        of_8 = self.up[1](torch.cat([F.interpolate(of_16, scale_factor=2.0), of_8], 1))
        of_16 = self.down[0](torch.cat([self.strided[0](of_8), of_16], 1))
        of_32 = self.down[1](torch.cat([self.strided[1](of_16), of_32], 1))
        boxes = [
            torch.cat([sides(features), classes(features)], 1).flatten(2)
            for features, sides, classes in zip((of_8, of_16, of_32), self.sides, self.classes, strict=True)
        ]
        return torch.cat(boxes, 2)


class UNet(nn.Module):
    """U-Net with padded convolutions and batch norm: N x 1 x H x W to N x 2 x H x W, H and W multiples of 16."""

    def __init__(self, channels: int = 1, base: int = 64, levels: int = 4, classes: int = 2):
        super().__init__()
        widths = [base << level for level in range(levels + 1)]
        self.down = nn.ModuleList(map(self._double, [channels, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths[:-1]))
        self.joined = nn.ModuleList(self._double(2 * width, width) for width in reversed(widths[:-1]))
        self.last = nn.Conv2d(base, classes, 1)

    @staticmethod
    def _double(channels: int, filters: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs in (channels, filters):
            layers += [nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for down in self.down:
            x = down(F.max_pool2d(skipped[-1], 2) if skipped else x)
            skipped.append(x)
        for up, joined, skip in zip(self.up, self.joined, skipped[-2::-1], strict=True):
            x = joined(torch.cat([skip, up(x)], 1))
        return self.last(x)


class ResidualBlock(nn.Module):
    """Two times group norm, SiLU and a 3x3 convolution, added to the input or to its 1x1 convolution."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.GroupNorm(32, channels, eps=1e-6), nn.SiLU(), nn.Conv2d(channels, filters, 3, padding=1)),
            *(nn.GroupNorm(32, filters, eps=1e-6), nn.SiLU(), nn.Conv2d(filters, filters, 3, padding=1)),
        )
        self.shortcut = nn.Identity() if channels == filters else nn.Conv2d(channels, filters, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.layers(x)


class Attention(nn.Module):
    """Self-attention of one head over the pixels of an image, added to the image."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.last = nn.GroupNorm(32, channels, eps=1e-6), nn.Linear(channels, channels)
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2).unsqueeze(1)  # N x one head x pixels x channels
        found = F.scaled_dot_product_attention(self.query(pixels), self.key(pixels), self.value(pixels))
        return x + self.last(found).squeeze(1).transpose(1, 2).unflatten(2, x.shape[2:])


class VaeDecoder(nn.Sequential):
    """The decoder of Stable Diffusion's autoencoder: latents N x 4 x H x W to images N x 3 x 8H x 8W."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv2d(4, 4, 1), nn.Conv2d(4, 512, 3, padding=1)]
        layers += [ResidualBlock(512, 512), Attention(512), ResidualBlock(512, 512)]
        for channels, filters in ((512, 512), (512, 512), (512, 256), (256, 128)):
            layers += [ResidualBlock(channels, filters), *(ResidualBlock(filters, filters) for _ in range(2))]
            if filters > 128:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(filters, filters, 3, padding=1)]
        layers += [nn.GroupNorm(32, 128, eps=1e-6), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1)]
        super().__init__(*layers)


class DilatedBlock(nn.Module):
    """HiFi-GAN's residual block: for each dilation a dilated convolution and a plain one, added to their input."""

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.Sequential(
                *(nn.LeakyReLU(0.1), nn.Conv1d(channels, channels, size, padding="same", dilation=dilation)),
                *(nn.LeakyReLU(0.1), nn.Conv1d(channels, channels, size, padding="same")),
            )
            for dilation in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.pairs:
            x = x + pair(x)
        return x


class MeanOfBlocks(nn.Module):
    """The mean of residual blocks of one input, with filters of 3, 7 and 11."""

    def __init__(self, channels: int):
        super().__init__()
        self.small, self.middle, self.large = (DilatedBlock(channels, size) for size in (3, 7, 11))

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = (self.small(x) + self.middle(x) + self.large(x)) / 3
        return mean


class HifiGan(nn.Sequential):
    """HiFi-GAN's generator V1, a vocoder: mel spectrograms N x 80 x frames to signals N x 1 x 256 frames.

    Its weight norm is merged into the weights, as for inference.
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv1d(80, 512, 7, padding=3)]
        for channels, rate in ((512, 8), (256, 8), (128, 2), (64, 2)):
            up = nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, padding=rate // 2)
            layers += [nn.LeakyReLU(0.1), up, MeanOfBlocks(channels // 2)]
        super().__init__(*layers, nn.LeakyReLU(), nn.Conv1d(32, 1, 7, padding=3), nn.Tanh())
        for layer in self.modules():  # with torch's smaller weights the output would be that of the biases alone
            if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")


class OpticalFlow(nn.Module):
    """torchvision's RAFT of small size on pairs of images, N x 2 x 3 x H x W: the last of its flows, N x 2 x H x W.

    H and W are multiples of 8, and at least 128. The layers are torchvision's. The code between them computes the same,
    but makes coordinates on the device and in the precision of the images. torchvision makes them on the CPU and in
    float32, so its RAFT can neither be captured in a CUDA graph nor compute in float16 or float64.
    """

    def __init__(self, raft: Any, updates: int = 12, levels: int = 4, radius: int = 3):
        super().__init__()
        self.features, self.context, self.update = raft.feature_encoder, raft.context_encoder, raft.update_block
        self.updates, self.levels = updates, levels
        steps = torch.arange(-radius, radius + 1.0)
        self.register_buffer("around", torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1))

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.unbind(1)
        features_of_first, features_of_second = self.features(torch.cat([first, second])).chunk(2)
        pyramid = self._pyramid(features_of_first, features_of_second)
        hidden, context = self.context(first).split([self.update.hidden_state_size, 64], 1)
        hidden, context = hidden.tanh(), context.relu()
        ones = torch.ones_like(hidden[:, :1])
        pixels = torch.cat([ones.cumsum(3), ones.cumsum(2)], 1) - 1  # x and y
        flow = torch.zeros_like(pixels)
        for _ in range(self.updates):
            hidden, change = self.update(hidden, context, self._correlations(pyramid, pixels + flow), flow)
            flow = flow + change
        return 8 * F.interpolate(flow, scale_factor=8.0, mode="bilinear", align_corners=True)

    def _pyramid(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """The products of each pixel of the first with all of the second, and their means over 2x2, 4x4 and 8x8."""
        h, w = second.shape[2:]
        products = torch.matmul(first.flatten(2).transpose(1, 2), second.flatten(2)) / first.shape[1] ** 0.5
        pyramid = [products.reshape(-1, 1, h, w)]
        for _ in range(1, self.levels):
            pyramid.append(F.avg_pool2d(pyramid[-1], 2))
        return pyramid

    def _correlations(self, pyramid: list[Tensor], centres: Tensor) -> Tensor:
        """The products around each pixel's centre, interpolated, of all levels of the pyramid."""
        n, _, h, w = centres.shape
        centres = centres.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
        found = []
        for level, products in enumerate(pyramid):
            places = centres / 2**level + self.around
            x, y = (2 * places[..., i] / (products.shape[3 - i] - 1) - 1 for i in range(2))
            sampled = F.grid_sample(products, torch.stack([x, y], -1), align_corners=True)
            found.append(sampled.view(n, h, w, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2).contiguous()
