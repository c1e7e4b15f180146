"""Small models, operands, and the comparison with float64, for the tests of cuconv.nn."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def operands(groups=1):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 8, 9, 11), (12, 8 // groups, 3, 3), (12,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def close(ours, theirs, tolerance=1e-5):
    return torch.linalg.vector_norm(ours.double() - theirs.double()) <= tolerance * torch.linalg.vector_norm(
        theirs.double()
    )


def conv_bn(*sizes, relu=False, **options):
    layers = [nn.Conv2d(*sizes, bias=False, **options), nn.BatchNorm2d(sizes[1])]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if relu else []))


class Block(nn.Module):
    """A residual block as torchvision writes it, with a shortcut."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv_bn(8, 16, 3, stride=2, padding=1, relu=True), conv_bn(16, 16, 3, padding=1)
        self.shortcut = conv_bn(8, 16, 1, stride=2)

    def forward(self, x):
        out = self.second(self.first(x))
        out += self.shortcut(x)
        return F.relu(out)


class Branches(nn.Module):
    """Branches that are concatenated, a convolution with two users, and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = (
            nn.Conv2d(3, 8, 3),
            nn.Conv2d(8, 8, 1),
            conv_bn(8, 8, 3, padding=1, groups=8, relu=True),
        )

    def forward(self, x):
        x = self.stem(x)
        return torch.cat([torch.relu(self.a(x)), self.a(x * 2), self.b(x), x], 1)


class Fire(nn.Module):
    """Two branches as in SqueezeNet."""

    def __init__(self):
        super().__init__()
        self.squeeze, self.one, self.three = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(4, 12, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


class Classifier(nn.Module):
    """A convolution, pooling, and two fully connected layers."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(2)
        self.hidden = nn.Sequential(nn.Dropout(), nn.Linear(32, 20), nn.ReLU(inplace=True), nn.Dropout())
        self.last = nn.Linear(20, 10)

    def forward(self, x):
        return self.last(self.hidden(torch.flatten(self.pool(F.relu(self.conv(x))), 1)))


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = conv_bn(3, 8, 3, relu=True)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.features(x)
        return self.last(x) if x.sum() > -1e9 else x


class WritesItsInput(nn.Module):
    """Writes to the convolution's input between the convolution and the sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = x + 1
        out = self.conv(x)
        return out + F.relu(x, inplace=True)


class Blocks(nn.Module):
    """Residual blocks of dilated convolutions with LeakyReLU ahead, as in HiFi-GAN."""

    def __init__(self, channels, length, dilations):
        super().__init__()
        self.first = nn.ModuleList([self.layer(channels, length, dilation) for dilation in dilations])
        self.second = nn.ModuleList([self.layer(channels, length, 1) for _ in dilations])

    def layer(self, channels, length, dilation):
        return weight_norm(nn.Conv1d(channels, channels, length, dilation=dilation, padding=length // 2 * dilation))

    def forward(self, x):
        for first, second in zip(self.first, self.second, strict=True):
            x = second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1)) + x
        return x


class Generator(nn.Module):
    """A vocoder from 10 bands to a waveform of four times the length."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(10, 16, 7, padding=3)
        self.up = nn.ModuleList([nn.ConvTranspose1d(16, 8, 4, 2, 1), nn.ConvTranspose1d(8, 8, 4, 2, 1)])
        self.blocks = nn.ModuleList([nn.ModuleList([Blocks(8, 3, (1, 3)), Blocks(8, 7, (1, 5))]) for _ in self.up])
        self.last = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, x):
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = (blocks[0](x) + blocks[1](x)) / 2
        return torch.tanh(self.last(F.leaky_relu(x)))


MODELS = {
    "sequential": (lambda: nn.Sequential(conv_bn(3, 8, 3, relu=True), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)), 3),
    "block": (Block, 8),
    "branches": (Branches, 3),
    "fire": (Fire, 3),
    "classifier": (Classifier, 3),
    "untraceable": (Untraceable, 3),
    "writes its input": (WritesItsInput, 4),
}


def made(name):
    torch.manual_seed(1)
    make, channels = MODELS[name]
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight.data, module.running_var):
                values.uniform_(0.5, 2)
            for values in (module.bias.data, module.running_mean):
                values.normal_()
    return model, torch.randn(2, channels, 12, 13)
