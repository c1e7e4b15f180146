"""Networks by name: torchvision's, timm's and the harness's own, with random weights from a seed, in eval mode.

Batch norm gets statistics of its own input, and random factors on them. With the statistics of a fresh network,
mean 0 and variance 1, folding would change little, and in deep networks the activations would vanish or overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from harness.errors import UsageError
from harness.experiments.networks.architectures import HifiGan, OpticalFlow, UNet, VaeDecoder, YoloV8n
from harness.experiments.networks.rows import HARNESS, PAPER_NETWORKS, TORCHVISION, label
from harness.stopwatch.gpu import first_line, out_of_memory
from harness.store import environment

OWN: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {  # what builds it, and the shape of an input
    "yolov8n": (YoloV8n, (3, 640, 640)),
    "unet": (UNet, (1, 512, 512)),
    "vae_decoder": (VaeDecoder, (4, 64, 64)),
    "hifi_gan": (HifiGan, (80, 256)),
}
MODERN = (
    "mobilenet_v3_large", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_800mf", "resnext50_32x4d", "convnext_tiny",
    "raft_small", *OWN,
)  # fmt: skip
PACKAGES = (TORCHVISION, "timm")
SHAPE = (3, 224, 224)  # an input's, without the batch, where SHAPES has no other
SHAPES: dict[tuple[str, str], tuple[int, ...]] = {
    (TORCHVISION, "inception_v3"): (3, 299, 299),
    (TORCHVISION, "efficientnet_v2_s"): (3, 384, 384),
    (TORCHVISION, "raft_small"): (2, 3, 256, 256),
}
_INCEPTION: dict[str, Any] = {"aux_logits": False, "init_weights": True, "transform_input": False}
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": _INCEPTION, "inception_v3": _INCEPTION}  # for torchvision's builders
STATISTICS_IMAGES = 4


@dataclass(frozen=True, slots=True)
class Network:
    """A network by its name in a source, "torchvision", "timm" or "harness".

    shape: that of an input, without the batch. build: makes the network on the CPU, with random weights.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    build: Callable[[], torch.nn.Module]

    @property
    def label(self) -> str:
        """The name as a user types it."""
        return label(self.name, self.source)

    def model(self, seed: int) -> torch.nn.Module:
        """The network in eval mode, on the CPU; a seed gives the same weights and statistics each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build().float().eval()
            randomise_batch_norm(model, torch.randn(STATISTICS_IMAGES, *self.shape))
        return model.requires_grad_(False)

    def input(self, batch: int, seed: int) -> torch.Tensor:
        """Normal data for a batch, on the CPU."""
        return torch.randn(batch, *self.shape, generator=torch.Generator().manual_seed(seed))


def split_name(typed: str) -> tuple[str, str]:
    """(source, name) of a network as a user types it. Raises UsageError where the name has no such form."""
    source, colon, name = typed.rpartition(":")
    if not colon and typed in (*PAPER_NETWORKS, *MODERN):
        return (HARNESS if typed in OWN else TORCHVISION), typed
    if (source in PACKAGES and name) or (source == HARNESS and name in OWN):
        return source, name
    allowed = ", ".join((*PAPER_NETWORKS, *MODERN))
    raise UsageError(f"--net {typed}: must be one of {allowed}, or torchvision:NAME or timm:NAME for any other")


def find(typed: str) -> Network:
    """The network of a name. Raises UsageError where its package is missing or does not know the name."""
    source, name = split_name(typed)
    if source == HARNESS:
        build, shape = OWN[name]
        return Network(name, source, shape, build)
    package = _package("torchvision.models" if source == TORCHVISION else "timm", typed)
    known = package.list_models()
    if name not in known:
        alike = [other for other in known if other.startswith(name[:3])] or known
        raise UsageError(f"--net {typed}: {source} has no network {name!r}: it has {', '.join(alike[:8])}, ...")
    if source == TORCHVISION:
        return Network(name, source, SHAPES.get((source, name), SHAPE), partial(_of_torchvision, package, name))
    return Network(name, source, SHAPE, partial(package.create_model, name, pretrained=False))


def versions() -> dict[str, Any]:
    """The version of each package that has networks, or None where it is not installed, for reports."""
    return {package: environment.version(package) for package in PACKAGES}


def _of_torchvision(models: Any, name: str) -> torch.nn.Module:
    """A network of torchvision, which takes one tensor and returns what `logits` takes."""
    model = models.get_model(name, **_options(models, name))
    return OpticalFlow(model) if name == "raft_small" else model


def _options(models: Any, name: str) -> dict[str, Any]:
    """The arguments of torchvision's builder of a network, so that nothing is downloaded."""
    options = {"weights": None, **OPTIONS.get(name, {})}
    backbone = "weights_backbone"  # segmentation networks have it
    return options | {backbone: None} if backbone in signature(models.get_model_builder(name)).parameters else options


def _package(module: str, typed: str) -> Any:
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        if getattr(error, "name", None) != package:
            reason = f"{package} cannot be imported ({first_line(error)})"
            raise UsageError(f"--net {typed}: {reason}: install the {package} of this torch") from None
    extra = "the extra 'networks' installs it: pip install -e '.[networks]'"
    remedy = extra if package == TORCHVISION else f"install it with pip install {package}"
    raise UsageError(f"--net {typed}: it needs {package}, which is not installed; {remedy}")


def randomise_batch_norm(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Give every batch norm random weights, and as statistics those of its input, times random factors.

    images: the input that the statistics are taken on. The random numbers are those of torch's default generator. The
    model must be in eval mode, and returns to it.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    momenta = [layer.momentum for layer in layers]
    if not layers:
        return
    for layer in layers:
        if layer.affine:
            layer.weight.data.uniform_(0.5, 1.5)
            layer.bias.data.normal_(0, 0.1)
        layer.momentum = 1.0  # the statistics of this forward alone
        layer.train()
    with torch.no_grad():
        model(images)
        for layer, momentum in zip(layers, momenta, strict=True):
            mean, variance = layer.running_mean, layer.running_var
            assert mean is not None and variance is not None
            mean += 0.1 * variance.sqrt() * torch.randn_like(mean)
            variance *= torch.empty_like(variance).uniform_(0.8, 1.25)
            layer.momentum = momentum
            layer.eval()


def logits(output: Any) -> torch.Tensor:
    """The tensor in a network's output: of a dictionary its "out" or first entry, of a sequence its first."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return logits(output.get("out", next(iter(output.values()))))
    return logits(output[0])


def reference(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits in float64. Where memory does not suffice the batch is computed in pieces.

    model and images: on one device, in float32; both stay as they are.
    """
    precise = deepcopy(model).double()
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False  # it runs once, so its plans need not be the fastest
    try:
        return torch.cat(_in_pieces(lambda some: logits(precise(some.double())), images))
    finally:
        torch.backends.cudnn.benchmark = benchmark


def _in_pieces(compute: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> list[torch.Tensor]:
    """The results of pieces of a batch, as large as memory allows."""
    pieces, size = [], len(images)
    done = 0
    while done < len(images):
        try:
            pieces.append(compute(images[done : done + size]))
            done += size
        except Exception as error:
            if not out_of_memory(error) or size == 1:
                raise
            size = (size + 1) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return pieces
