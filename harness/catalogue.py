"""What is measured: YAML files to layers to cases.

A network file lists layers. A sweep file names networks, batch sizes and settings. A user's own file may be
either, and a plain list of layers is enough. Files are checked in full before anything is measured; what is
wrong is told in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cuconv.problem import ConvProblem
from harness.results.records import MAX_RUNS

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
NETWORKS = CONFIGS / "networks"
MIB = 2**20


class CatalogueError(Exception):
    """A file or a choice of layers that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Layer:
    """A stride-1 convolution without a batch size, and who owns it: c channels of h x w, m square filters of k x k.

    pad zeros stand on each side in both axes. A shape that several networks have is one layer with several owners;
    names holds its names in all of them.
    """

    networks: tuple[str, ...]
    names: tuple[str, ...]
    h: int
    w: int
    c: int
    m: int
    k: int
    pad: int


@dataclass(frozen=True)
class Case:
    """A layer with a batch size: one row of cells in measurements.csv for each algorithm."""

    layer: Layer
    batch: int

    @property
    def problem(self) -> ConvProblem:
        layer = self.layer
        return ConvProblem(
            n=self.batch, c=layer.c, h=layer.h, w=layer.w, m=layer.m,
            kh=layer.k, kw=layer.k, pad_h=layer.pad, pad_w=layer.pad,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The paper's name of the case: HW-N-K-M-C."""
        return self.problem.label

    @property
    def key(self) -> tuple[int, ...]:
        """(batch, h, w, c, m, k, pad), the order of the columns in measurements.csv."""
        layer = self.layer
        return (self.batch, layer.h, layer.w, layer.c, layer.m, layer.k, layer.pad)

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
    """What one call of the harness measures: all batch sizes of a layer, then the next layer.

    runs is the number of timed runs of each algorithm, workspace_limit the bytes of temporary memory it may use.
    """

    name: str
    cases: tuple[Case, ...]
    runs: int
    workspace_limit: int


def known_networks() -> tuple[str, ...]:
    """The names of the networks in configs/networks, sorted."""
    return _stems(NETWORKS)


def load_network(network: str | Path) -> list[NetworkLayer]:
    """The layers of a network with their counts and sets, by its name in configs/networks or by the path of a file.

    Raises CatalogueError for an unknown name and for a malformed file.
    """
    path = _locate(network, NETWORKS, Path())
    return _validate(NetworkFile, _read_yaml(path), path).layers


def load_sweep(
    config: str | Path,
    *,
    networks: Iterable[str] | None = None,
    batches: Iterable[int] | None = None,
    filter_sizes: Iterable[int] | None = None,
    layers: Iterable[str] | None = None,
) -> Sweep:
    """Read a sweep by its name in configs/, or any sweep or list of layers by its path.

    networks, filter_sizes and layers, in this order, keep what matches one of their values; batches replaces
    the batch sizes of the file. None keeps all. A layer that stays keeps all its owners.
    Raises CatalogueError for a malformed file, and for a value that nothing left in the sweep matches.
    """
    path = _locate(config, CONFIGS, Path())
    data = _read_yaml(path)
    # Beside networks, layers are names to keep; alone, they are the layers themselves.
    if "layers" in data and "networks" not in data:
        spec = _validate(LayersFile, data, path)
        chosen = _merge({path.stem: spec.layers})
    else:
        spec = _validate(SweepFile, data, path)
        chosen = _keep(_merge(_read_networks(spec, path)), "layer", spec.layers or None, str(path))
    sweep = f"sweep {path.stem!r}"
    for what, wanted in (("network", networks), ("filter size", filter_sizes), ("layer", layers)):
        chosen = _keep(chosen, what, wanted, sweep)
    sizes = spec if batches is None else _validate(_Settings, {"batch_sizes": list(batches)}, sweep)
    cases = tuple(Case(layer, batch) for layer in chosen for batch in sizes.batch_sizes)
    return Sweep(path.stem, cases, spec.runs, spec.workspace_limit_mib * MIB)


# What files may contain. A description ends the sentence "FIELD is VALUE: must be ...".

COUNTING = "a whole number of at least 1"


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError
    return value


def _distinct(values: list[Hashable]) -> list[Hashable]:
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _numbered(entries: Any) -> Any:
    """Name a layer without a name by its number in the file."""
    if not isinstance(entries, list):
        return entries
    return [{"name": f"layer {n}", **e} if isinstance(e, dict) else e for n, e in enumerate(entries, start=1)]


Size = Annotated[int, Field(ge=1, description=COUNTING)]
Name = Annotated[str, Field(pattern=r"^[^;\s]([^;\n]*[^;\s])?$")]  # measurements.csv joins names by ";"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NetworkLayer(_Strict):
    """One line of a network file: a stride-1 layer, how often the network has it, and whether the paper measures it.

    Sizes as in Layer; name holds all names of the shape in the network.
    """

    name: Annotated[list[Name], BeforeValidator(_listed)] = Field(
        min_length=1, description="a text without ';', or a list of such texts"
    )
    hw: Size | None = Field(default=None, description=COUNTING)
    h: Size | None = Field(default=None, description=COUNTING)
    w: Size | None = Field(default=None, description=COUNTING)
    c: Size
    m: Size
    k: Annotated[Size, AfterValidator(_odd)] = Field(description="an odd whole number of at least 1")
    pad: int = Field(ge=0, description="a whole number of at least 0 and smaller than k")
    # 0: the paper measures the layer, but the network has it with another stride only.
    count: int = Field(default=1, ge=0, description="a whole number of at least 0")
    set: Literal["paper", "network"] = Field(default="network", description="paper or network")

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """(h, w, c, m, k, pad)"""
        return (self.hw or self.h, self.hw or self.w, self.c, self.m, self.k, self.pad)

    @model_validator(mode="after")
    def _has_an_output(self) -> NetworkLayer:
        given = {field: getattr(self, field) for field in ("hw", "h", "w") if getattr(self, field) is not None}
        if set(given) not in ({"hw"}, {"h", "w"}):
            found = " and ".join(f"{field} is {value}" for field, value in given.items()) or "hw is missing"
            raise ValueError(f"{found}: must be either hw alone or both h and w")
        if self.pad >= self.k:
            raise ValueError(f"pad is {self.pad}: must be smaller than k, which is {self.k}")
        height, width = (size + 2 * self.pad for size in self.shape[:2])
        if self.k > min(height, width):
            raise ValueError(f"k is {self.k}: must be at most the padded input, which is {height}x{width}")
        return self


class NetworkFile(_Strict):
    layers: Annotated[list[NetworkLayer], BeforeValidator(_numbered)] = Field(
        min_length=1, description="a list of one or more layers"
    )

    @model_validator(mode="after")
    def _tells_layers_apart(self) -> NetworkFile:
        names: set[str] = set()
        shapes: dict[tuple[int, ...], str] = {}
        for layer in self.layers:
            for name in layer.name:
                if name in names:
                    raise ValueError(f"layers: the name {name!r} stands twice: must be different for each layer")
                names.add(name)
            first = shapes.setdefault(layer.shape, layer.name[0])
            if first != layer.name[0]:
                raise ValueError(f"layers: {layer.name[0]!r} has the shape of {first!r}: must stand once, with count")
        return self


class _Settings(_Strict):
    batch_sizes: Annotated[list[Size], AfterValidator(_distinct)] = Field(
        default=[1], min_length=1, description=f"a list of different batch sizes, each {COUNTING}"
    )
    runs: int = Field(default=MAX_RUNS, ge=1, le=MAX_RUNS, description=f"a whole number from 1 to {MAX_RUNS}")
    workspace_limit_mib: Size = 1024


class LayersFile(_Settings, NetworkFile):
    """A user's list of layers: a network file that is a sweep too."""


class SweepFile(_Settings):
    """A sweep over networks. Without sets it takes all layers of each."""

    networks: Annotated[list[str], AfterValidator(_distinct)] = Field(
        min_length=1, description="a list of different networks (or leave it out and write layers, a list of layers)"
    )
    sets: list[Literal["paper", "network"]] = Field(
        default=["paper", "network"], min_length=1, description="a list of paper, network or both"
    )
    layers: list[str] = Field(default=[], min_length=1, description="names of layers to keep, beside networks")


# From files to layers.

Model = TypeVar("Model", bound=_Strict)


def _stems(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def _locate(name: str | Path, known_in: Path, relative_to: Path, asked_by: str = "") -> Path:
    """The file that a known name or a path stands for."""
    known = _stems(known_in)
    if str(name) in known:
        return known_in / f"{name}.yaml"
    path = relative_to / name
    if not path.is_file():
        choice = f"must be one of {', '.join(known)}, or the path of a YAML file"
        raise CatalogueError(f"{asked_by}{str(name)!r} is not found: {choice}")
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


def _merge(networks: dict[str, list[NetworkLayer]]) -> list[Layer]:
    """One layer for each distinct shape, in order of first appearance, with all its owners."""
    owners: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
    for network, layers in networks.items():
        for layer in layers:
            its_networks, its_names = owners.setdefault(layer.shape, ([], []))
            its_networks.append(network)
            its_names.extend(layer.name)
    return [Layer(tuple(of), tuple(names), *shape) for shape, (of, names) in owners.items()]


_VALUES: dict[str, Callable[[Layer], tuple]] = {
    "network": lambda layer: layer.networks,
    "filter size": lambda layer: (layer.k,),
    "layer": lambda layer: layer.names,
}


def _keep(layers: list[Layer], what: str, wanted: Iterable | None, where: str) -> list[Layer]:
    """The layers that have one of the wanted values of their network, filter size or name; None keeps all."""
    if wanted is None:
        return layers
    wanted, values_of = tuple(wanted), _VALUES[what]
    present = dict.fromkeys(value for layer in layers for value in values_of(layer))
    unknown = [value for value in wanted if value not in present]
    if unknown or not wanted:
        wrong = f"has no {what} {unknown[0]!r}" if unknown else f"is filtered by no {what}"
        raise CatalogueError(f"{where} {wrong}: must be one of {', '.join(map(str, present))}")
    return [layer for layer in layers if set(values_of(layer)) & set(wanted)]


# Reading, and telling what is wrong.


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, where plain YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise CatalogueError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        raise CatalogueError(f"{path}: line {error.problem_mark.line + 1} is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise CatalogueError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise CatalogueError(f"{path} is {_shown(data)}: must be a mapping with networks or layers")
    return data


def _validate(model: type[Model], data: dict, where: str | Path) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    # A key that is unknown is often the misspelt one that is missing: tell it first.
    siblings = [e for e in errors if e["loc"][:-1] == errors[0]["loc"][:-1]]
    first = min(siblings, key=lambda e: e["type"] not in _UNKNOWN_KEY)
    raise CatalogueError(f"{where}: {_explain(first, model, data)}")


_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")


def _explain(error: dict, model: type[BaseModel], data: dict) -> str:
    """One sentence for one error of pydantic: the layer, the field, its value, and what is allowed."""
    loc, place = error["loc"], ""
    if issubclass(model, NetworkFile) and loc[:1] == ("layers",) and len(loc) > 1:
        entry = data["layers"][loc[1]]
        if not isinstance(entry, dict):
            return f"layer {loc[1] + 1} is {_shown(entry)}: must be a mapping like {{hw: 7, c: 8, m: 9, k: 3, pad: 1}}"
        place = _place(entry, number=loc[1] + 1)
        loc, model = loc[2:], NetworkLayer
    if not loc:
        return f"{place}{error['ctx']['error']}"
    field, value = loc[0], error["input"]
    if error["type"] in _UNKNOWN_KEY:
        return f"{place}unknown key {field!r}: must be one of {', '.join(model.model_fields)}"
    allowed = model.model_fields[field].description
    if error["type"] == "missing":
        return f"{place}{field} is missing: must be {allowed}"
    return f"{place}{field} {'has' if loc[1:] else 'is'} {_shown(value)}: must be {allowed}"


def _place(entry: dict, number: int) -> str:
    names = _listed(entry.get("name"))
    named = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return f"layer {', '.join(names)!r}: " if named else f"layer {number}: "


def _shown(value: Any) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
