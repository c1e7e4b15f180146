"""Tiny networks, contenders and a machine that is a CPU, for the tests of whole networks."""

import torch
from torch import nn

from harness.experiments.networks.contenders import Prepared
from harness.experiments.networks.measure import Settings
from harness.experiments.networks.models import Network
from harness.experiments.networks.rows import NetworkTime


class ToyModel(nn.Module):
    """A convolution with batch norm, a pooling and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Cpu:
    """A CPU as a Machine: a graph is the call with an output of its own, memory is counted in forwards."""

    device = torch.device("cpu")

    def __init__(self):
        self.errors, self.captured = [], 0

    def synchronize(self):
        pass

    def mark(self):
        return self.synchronize

    def capture(self, forward):
        self.captured += 1
        output = forward().clone()
        return lambda: output.copy_(forward())

    def allocated(self):
        return 1000

    def peak(self, forward):
        forward()
        return 1234

    def after_error(self, what, error):
        self.errors.append(what)

    def release(self):
        pass


def network(name="toy", build=ToyModel):
    """A network with inputs of 8x8."""
    return Network(name, "torchvision", (3, 8, 8), build)


def plain(model, images, precision):
    """A contender that is torch on a CPU."""
    return Prepared(lambda: model(images), "plain")


def settings(runs=2, precision="fp32", consumption=None, **contenders):
    """Settings with contenders by name, `plain` where none is given."""
    return Settings(contenders or {"torch": plain}, precision, runs=runs, consumption=consumption)


def time(us=10.0, network="resnet50", batch=1, contender="cuconv", precision="fp32", mode="graph", source="torchvision",
         **other):  # fmt: skip
    """A row of networks.csv; us=None is a row that failed."""
    status, runs = ("ok", (us,) * 9) if us else ("error", ())
    return NetworkTime(network, source, batch, contender, precision, mode, status, runs_us=runs, **other)
