"""The catalogue of layers to measure: YAML files become layers, and layers with a batch size become cases.

A network file lists layers. A sweep file names networks, batch sizes and settings. A user's own file may be either,
and a plain list of layers is enough. Files are checked in full before anything is measured. An error is told in one
sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cuconv.core.problem import ConvProblem
from harness.cases.config_files import LayersFile, NetworkFile, NetworkLayer, Settings, SweepFile, check_name, validate
from harness.cases.random_layers import Distribution, RandomSettings, problems
from harness.cases.yaml_file import read_yaml
from harness.errors import CatalogueError
from harness.store.markdown import extent

__all__ = [
    "CONFIGS",
    "LABELS",
    "MIB",
    "Case",
    "CatalogueError",
    "Layer",
    "Sweep",
    "known_networks",
    "load_network",
    "load_sweep",
    "problem_labelled",
]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NETWORKS = CONFIGS / "networks"
MIB = 2**20
MOST_CASES = 100_000  # a sweep has no more, since all take memory at once
Slices = tuple[Iterable[str] | None, Iterable[int | str] | None, Iterable[str] | None]  # networks, filters, layers
FEW = 12  # values that a message lists in full
LABELS = (
    "Labels are HW-N-K-M-C: input height and width, batch size, filter size, filters, input channels. "
    "Where the batch and filter size are given, HW-M-C."
)


@dataclass(frozen=True)
class Layer:
    """A convolution without a batch size: c channels of h x w, m filters of k x kw.

    pad rows of zeros stand above and below an image, pad_w columns left and right of it. stride and dilation are the
    same in both axes. networks are the owners of the shape: a shape of several networks is one layer, and names holds
    its names in all of them.
    """

    networks: tuple[str, ...]
    names: tuple[str, ...]
    h: int
    w: int
    c: int
    m: int
    k: int
    pad: int
    stride: int
    dilation: int
    groups: int
    kw: int
    pad_w: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in the order of the fields: h, w, c and so on."""
        return (self.h, self.w, self.c, self.m, self.k, self.pad, self.stride, self.dilation, self.groups, self.kw,
                self.pad_w)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A layer with a batch size: one row of cells in measurements.csv for each algorithm."""

    layer: Layer
    batch: int

    def __str__(self) -> str:
        return self.label

    @property
    def problem(self) -> ConvProblem:
        """The convolution of the case, in FP32."""
        layer = self.layer
        return ConvProblem(
            n=self.batch, c=layer.c, h=layer.h, w=layer.w, m=layer.m,
            kh=layer.k, kw=layer.kw, pad_h=layer.pad, pad_w=layer.pad_w, stride_h=layer.stride, stride_w=layer.stride,
            dilation_h=layer.dilation, dilation_w=layer.dilation, groups=layer.groups,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The paper's name of the case: HW-N-K-M-C."""
        return self.problem.label

    @property
    def key(self) -> tuple[int, ...]:
        """The sizes in the order of the columns CASE_COLUMNS of measurements.csv: batch, h, w and so on."""
        return (self.batch, *self.layer.shape)

    @property
    def networks_cell(self) -> str:
        """The owners of the shape, as measurements.csv has them."""
        return ";".join(self.layer.networks)

    @property
    def layers_cell(self) -> str:
        """The names of the shape, as measurements.csv has them."""
        return ";".join(self.layer.names)


@dataclass(frozen=True)
class Sweep:
    """The cases that one command measures: all batch sizes of a layer, then the next layer.

    runs is the number of timed runs of each algorithm, workspace_limit the bytes of temporary memory it may use.
    epilogue is what follows each convolution in the same call (`config_files.Settings`), "" for nothing.
    """

    name: str
    cases: tuple[Case, ...]
    runs: int
    workspace_limit: int
    epilogue: str = ""


def problem_labelled(label: str) -> ConvProblem:
    """The convolution that the paper calls HW-N-K-M-C: square, and padded to keep its size."""
    hw, n, k, m, c = map(int, label.split("-"))
    return ConvProblem(n=n, c=c, h=hw, w=hw, m=m, kh=k, kw=k, pad_h=(k - 1) // 2, pad_w=(k - 1) // 2)


def known_networks() -> tuple[str, ...]:
    """The names of the networks in configs/networks, sorted."""
    return _stems(NETWORKS)


def known_sweeps() -> tuple[str, ...]:
    """The names of the sweeps in configs, sorted."""
    return _stems(CONFIGS)


def load_network(network: str | Path) -> list[NetworkLayer]:
    """The layers of a network with their counts and sets, by its name in configs/networks or by the path of a file.

    Raises CatalogueError for an unknown name and for a malformed file.
    """
    path = _locate(network, NETWORKS, Path())
    return validate(NetworkFile, read_yaml(path), path).layers


def load_sweep(
    config: str | Path,
    *,
    networks: Iterable[str] | None = None,
    batches: Iterable[int] | None = None,
    filter_sizes: Iterable[int | str] | None = None,
    layers: Iterable[str] | None = None,
) -> Sweep:
    """Read a sweep by its name in configs/, or any sweep or list of layers by its path.

    networks, filter_sizes and layers, in this order, keep the layers that match one of their values. A filter size is
    3, or "1x7". batches replaces the batch sizes of the file. None keeps all. A layer that stays keeps all its owners.

    Raises CatalogueError for a malformed file, and for a value that nothing left in the sweep matches.
    """
    path = _locate(config, CONFIGS, Path())
    data = read_yaml(path)
    if "random" in data:
        return _random_sweep(data, path, batches, (networks, filter_sizes, layers))
    spec: LayersFile | SweepFile
    own: dict[tuple[int, ...], list[int] | None] = {}  # the batch sizes of a layer, by its shape
    # Beside networks, layers are names to keep; alone, they are the layers themselves.
    if "layers" in data and "networks" not in data:
        spec = validate(LayersFile, data, path)
        chosen = _merge({path.stem: spec.layers})
        own = {layer.shape: layer.batch_sizes for layer in spec.layers if batches is None}
    else:
        spec = validate(SweepFile, data, path)
        chosen = _keep(_merge(_read_networks(spec, path)), "layer", spec.layers or None, str(path), path)
    sweep = f"sweep {path.stem!r}"
    chosen = _slice(chosen, sweep, config, (networks, filter_sizes, layers))
    sizes = spec if batches is None else validate(Settings, {"batch_sizes": list(batches)}, sweep)
    batches_of = [(layer, own.get(layer.shape) or sizes.batch_sizes) for layer in chosen]
    if (count := sum(len(its) for _, its in batches_of)) > MOST_CASES:
        raise CatalogueError(
            f"{sweep} has {count} cases of {len(chosen)} layers: must be at most {MOST_CASES}; divide it"
        )
    cases = tuple(Case(layer, batch) for layer, its in batches_of for batch in its)
    return Sweep(path.stem, cases, spec.runs, spec.workspace_limit_mib * MIB, spec.epilogue)


def _random_sweep(data: dict[str, Any], path: Path, batches: Iterable[int] | None, wanted: Slices) -> Sweep:
    """The sweep of layers that a seed draws; batches keeps the cases of these batch sizes."""
    spec = validate(RandomSettings, {key: value for key, value in data.items() if key != "random"}, path)
    if not isinstance(data["random"], dict):
        raise CatalogueError(f"{path}: random is no mapping: must be like that of configs/random.yaml")
    chances = validate(Distribution, data["random"], f"{path}: random")
    if chances.cases > MOST_CASES:
        raise CatalogueError(f"{path}: random: cases is {chances.cases}: must be at most {MOST_CASES}")
    drawn = [
        Case(Layer((path.stem,), (f"random {number}",), p.h, p.w, p.c, p.m, p.kh, p.pad_h, p.stride_h, p.dilation_h,
                   p.groups, p.kw, p.pad_w), p.n)
        for number, p in enumerate(problems(chances), start=1)
    ]  # fmt: skip
    sweep = f"sweep {path.stem!r}"
    if batches is not None:
        there, batches = {case.batch for case in drawn}, set(batches)
        if unknown := batches - there:
            raise CatalogueError(f"{sweep} has no batch size {min(unknown)}: must be one of {sorted(there)}")
        drawn = [case for case in drawn if case.batch in batches]
    kept = set(_slice([case.layer for case in drawn], sweep, path, wanted))
    cases = tuple(case for case in drawn if case.layer in kept)
    return Sweep(path.stem, cases, spec.runs, spec.workspace_limit_mib * MIB)


# From files to layers.


def _stems(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def _locate(name: str | Path, known_in: Path, relative_to: Path, asked_by: str = "") -> Path:
    """The file that a known name or a path stands for."""
    known = _stems(known_in)
    if str(name) in known:
        return known_in / f"{name}.yaml"
    path = relative_to / name
    if not os.path.isfile(path):  # pathlib's is_file raises for a name that is too long
        choice = f"must be one of {', '.join(known)}, or the path of a YAML file"
        raise CatalogueError(f"{asked_by}{str(name)!r} is not found: {choice}")
    check_name(path)
    return path


def _read_networks(spec: SweepFile, path: Path) -> dict[str, list[NetworkLayer]]:
    """The layers of each network of a sweep that are of its sets; paths are relative to the file of the sweep."""
    networks: dict[str, list[NetworkLayer]] = {}
    for entry in spec.networks:
        source = _locate(entry, NETWORKS, path.parent, f"{path}: networks: ")
        if source.stem in networks:
            raise CatalogueError(f"{path}: networks has {entry!r}: must not repeat the name {source.stem!r}")
        networks[source.stem] = [layer for layer in load_network(source) if layer.set in spec.sets]
    if not any(networks.values()):
        raise CatalogueError(f"{path}: sets is {spec.sets}: must be sets of which the networks have layers")
    return networks


def _merge(networks: Mapping[str, Sequence[NetworkLayer]]) -> list[Layer]:
    """One layer for each distinct shape, in order of first appearance, with all its owners."""
    owners: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
    for network, layers in networks.items():
        for layer in layers:
            its_networks, its_names = owners.setdefault(layer.shape, ([], []))
            its_networks.append(network)
            its_names.extend(layer.name)
    return [Layer(tuple(of), tuple(names), *shape) for shape, (of, names) in owners.items()]


_VALUES: dict[str, Callable[[Layer], tuple[str, ...]]] = {
    "network": lambda layer: layer.networks,
    "filter size": lambda layer: (extent(layer.k, layer.kw),),
    "layer": lambda layer: layer.names,
}


def _slice(layers: list[Layer], where: str, config: str | Path, wanted: Slices) -> list[Layer]:
    """The layers that have one of the wanted networks, filter sizes and names."""
    for what, values in zip(("network", "filter size", "layer"), wanted, strict=True):
        layers = _keep(layers, what, values, where, config)
    return layers


def _keep(layers: list[Layer], what: str, wanted: Iterable[Any] | None, where: str, config: str | Path) -> list[Layer]:
    """The layers that have one of the wanted values of their network, filter size or name; None keeps all.

    where and config begin and end the message of the CatalogueError: the sweep, and its name on the command line.
    """
    if wanted is None:
        return layers
    wanted, values_of = tuple(wanted), _VALUES[what]
    present = list(dict.fromkeys(value for layer in layers for value in values_of(layer)))
    unknown = [value for value in wanted if str(value) not in present]
    if not unknown and wanted:
        return [layer for layer in layers if set(values_of(layer)) & set(map(str, wanted))]
    wrong = f"has no {what} {unknown[0]!r}" if unknown else f"is filtered by no {what}"
    hint = _choice(present, what, str(unknown[0]) if unknown else "", config)
    if unknown and what == "network" and unknown[0] in known_networks():
        hint += f"; {unknown[0]} is in --config {_configs_with(unknown[0])}"
    raise CatalogueError(f"{where} {wrong}: {hint}")


def _choice(present: list[str], what: str, unknown: str, config: str | Path) -> str:
    """The values to choose from: all where they are few, otherwise those that resemble the unknown one."""
    if len(present) <= FEW:
        return f"must be one of {', '.join(present)}"
    close = get_close_matches(unknown, present, n=3)
    nearest = f"did you mean {', '.join(close)}? " if close else ""
    return f"{nearest}'python -m harness.run --config {config} --list' prints every {what}"


def _configs_with(network: str) -> str:
    """The sweeps of plain convolutions in configs/ that have layers of a known network, or else that network's file."""
    sweeps = []
    for name in _stems(CONFIGS):
        with suppress(CatalogueError):  # a sweep that cannot be read is no choice
            sweep = load_sweep(name)
            if not sweep.epilogue and any(network in case.layer.networks for case in sweep.cases):
                sweeps.append(name)
    return " or ".join(sweeps or [f"configs/networks/{network}.yaml"])
