"""The YAML files of configs/: what they may contain, and how an error in one is told in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import ge, gt
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from harness.cases.yaml_file import shown
from harness.errors import CatalogueError
from harness.store.markdown import extent
from harness.store.times import MOST_RUNS, RUNS

# The models of the files. A description ends the sentence "FIELD is VALUE: must be ...".

MOST = 2**31 - 1  # the largest size
COUNTING = f"a whole number of at least 1 and at most {MOST}"
PAIR = "a pair [rows, columns] of such numbers"


def _distinct(values: list[Hashable]) -> list[Hashable]:
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pair(least: int) -> Callable[[Any], tuple[int, int]]:
    """A validator that makes [rows, columns] of numbers of at least `least`; a single number stands for both."""

    def pair(value: Any) -> tuple[int, int]:
        rows, columns = value if isinstance(value, list) else (value, value)  # raises ValueError for other lists
        if not all(type(one) is int and least <= one <= MOST for one in (rows, columns)):
            raise ValueError
        return rows, columns

    return pair


def _numbered(entries: Any) -> Any:
    """Name a layer without a name by its number in the file."""
    if not isinstance(entries, list):
        return entries
    return [{"name": f"layer {n}", **e} if isinstance(e, dict) else e for n, e in enumerate(entries, start=1)]


Size = Annotated[int, Field(ge=1, le=MOST, description=COUNTING)]
Filter = Annotated[tuple[int, int], BeforeValidator(_pair(1))]
# measurements.csv joins names by ";". A control character would reach the terminal. A spreadsheet computes a cell that
# begins with one of =+-@, and a folder may not be called "." or "..".
NAMING = "a text without ';' and control characters, up to 200 long, that begins with none of = + - @ and the dot"
Name = Annotated[
    str,
    Field(pattern=r"^[^;\s\p{Cc}=+\-@.]([^;\p{Cc}\p{Zl}\p{Zp}]*[^;\s\p{Cc}])?$", max_length=200, description=NAMING),
]
_NAME = TypeAdapter(Name)


# Layers that the paper measures, others of stride 1, those with a stride, those with groups or a dilation, and those on
# a plane of one pixel.
Set = Literal["paper", "network", "strided", "grouped", "fully_connected"]
SETS: tuple[str, ...] = get_args(Set)


def _one_of(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NetworkLayer(Strict):
    """One line of a network file: a layer, how often the network has it, and which sweeps take it.

    Sizes are those of `catalogue.Layer`; k and pad are pairs (rows, columns). name holds all names of the shape in the
    network.
    """

    name: Annotated[list[Name], BeforeValidator(_listed)] = Field(
        min_length=1, description=f"{NAMING}, or a list of such texts"
    )
    hw: Size | None = Field(default=None, description=COUNTING)
    h: Size | None = Field(default=None, description=COUNTING)
    w: Size | None = Field(default=None, description=COUNTING)
    c: Size
    m: Size
    k: Filter = Field(description=f"{COUNTING}, or {PAIR}")
    pad: Annotated[tuple[int, int], BeforeValidator(_pair(0))] = Field(
        description=f"a whole number of at least 0 and smaller than the filter, or {PAIR}"
    )
    stride: Size = Field(default=1, description=COUNTING)
    dilation: Size = Field(default=1, description=COUNTING)
    groups: Size = Field(default=1, description=COUNTING)
    # 0: the paper measures the layer, but the network has it with another stride only.
    count: int = Field(default=1, ge=0, le=MOST, description="a whole number of at least 0")
    set: Set = Field(default="network", description=_one_of(SETS))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in the order of the fields of `catalogue.Layer`."""
        h, w = self.hw or self.h or 0, self.hw or self.w or 0
        (k, kw), (pad, pad_w) = self.k, self.pad
        return (h, w, self.c, self.m, k, pad, self.stride, self.dilation, self.groups, kw, pad_w)

    @model_validator(mode="after")
    def _has_an_output(self) -> NetworkLayer:
        given = {field: getattr(self, field) for field in ("hw", "h", "w") if getattr(self, field) is not None}
        if set(given) not in ({"hw"}, {"h", "w"}):
            found = " and ".join(f"{field} is {value}" for field, value in given.items()) or "hw is missing"
            raise ValueError(f"{found}: must be either hw alone or both h and w")
        size = [(k - 1) * self.dilation + 1 for k in self.k]
        padded = [side + 2 * pad for side, pad in zip(self.shape[:2], self.pad, strict=True)]
        what = "k" if self.dilation == 1 else "the filter with its dilation"
        if any(map(ge, self.pad, size)):
            raise ValueError(f"pad is {extent(*self.pad)}: must be smaller than {what}, which is {extent(*size)}")
        if any(map(gt, size, padded)):
            height, width = padded
            raise ValueError(f"{what} is {extent(*size)}: must be at most the padded input, which is {height}x{width}")
        for field, value in (("c", self.c), ("m", self.m)):
            if value % self.groups:
                raise ValueError(f"groups is {self.groups}: must divide {field}, which is {value}")
        return self


class NetworkFile(Strict):
    """A file of a network: its layers, each shape once."""

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


BatchSizes = Annotated[list[Size], AfterValidator(_distinct)]
BATCHES = f"a list of different batch sizes, each {COUNTING}"


Epilogue = Literal["", "bias_relu", "bias_add_relu"]
EPILOGUES: tuple[str, ...] = get_args(Epilogue)


class Settings(Strict):
    """The settings of a sweep.

    batch_sizes; runs: timed ones of each algorithm; workspace_limit_mib: the limit of temporary memory. epilogue: what
    follows the convolution in the same call, a bias and ReLU, or a bias, the addition of a tensor, and ReLU.
    """

    batch_sizes: BatchSizes = Field(default=[1], min_length=1, description=BATCHES)
    runs: int = Field(default=RUNS, ge=1, le=MOST_RUNS, description=f"a whole number from 1 to {MOST_RUNS}")
    workspace_limit_mib: Size = 1024
    epilogue: Epilogue = Field(default="", description=_one_of(EPILOGUES[1:]))


class SweepLayer(NetworkLayer):
    """One line of a list of layers that is a sweep: batch_sizes replace those of the file for this layer."""

    batch_sizes: BatchSizes | None = Field(default=None, min_length=1, description=BATCHES)


class LayersFile(Settings, NetworkFile):
    """A user's list of layers: a network file that is a sweep too."""

    layers: Annotated[list[SweepLayer], BeforeValidator(_numbered)] = Field(  # type: ignore[assignment]
        min_length=1, description="a list of one or more layers"
    )


class SweepFile(Settings):
    """A sweep over networks. Without sets it takes the layers of stride 1, without groups or dilation, of each."""

    networks: Annotated[list[str], AfterValidator(_distinct)] = Field(
        min_length=1, description="a list of different networks (or leave it out and write layers, a list of layers)"
    )
    sets: list[Set] = Field(
        default=["paper", "network"], min_length=1, description=f"a list of some of {', '.join(SETS)}"
    )
    layers: list[str] = Field(default=[], min_length=1, description="names of layers to keep, in addition to networks")


Model = TypeVar("Model", bound=Strict)

# The sentence that tells what is wrong in a file.


def check_name(path: Path) -> str:
    """The name that a file gives to a network or a sweep: its own, without .yaml. Raises CatalogueError."""
    try:
        return _NAME.validate_python(path.stem)
    except ValidationError:
        raise CatalogueError(f"{path}: its name is {shown(path.stem)}: must be {NAMING}; rename the file") from None


def validate(model: type[Model], data: dict[str, Any], where: str | Path) -> Model:
    """The data as a model. Raises CatalogueError with one sentence, which `where` begins, on the first error."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    # An unknown key is often a misspelling of the missing one: tell it first.
    siblings = [e for e in errors if e["loc"][:-1] == errors[0]["loc"][:-1]]
    first = min(siblings, key=lambda e: e["type"] not in _UNKNOWN_KEY)
    raise CatalogueError(f"{where}: {_explain(first, model, data)}")


_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")


def _explain(error: ErrorDetails, model: type[BaseModel], data: dict[str, Any]) -> str:
    """One sentence for one error of pydantic: the layer, the field, its value, and what is allowed."""
    loc, place = error["loc"], ""
    if issubclass(model, NetworkFile) and loc[:1] == ("layers",) and len(loc) > 1:
        number = int(loc[1]) + 1
        entry = data["layers"][number - 1]
        if not isinstance(entry, dict):
            return f"layer {number} is {shown(entry)}: must be a mapping like {{hw: 7, c: 8, m: 9, k: 3, pad: 1}}"
        place = _place(entry, number)
        loc, model = loc[2:], SweepLayer if issubclass(model, LayersFile) else NetworkLayer
    if not loc:
        return f"{place}{error['ctx']['error']}"
    if error["type"] in _UNKNOWN_KEY:
        return f"{place}unknown key {loc[0]!r}: must be one of {', '.join(model.model_fields)}"
    field, value = str(loc[0]), error["input"]
    allowed = model.model_fields[field].description
    if error["type"] == "missing":
        return f"{place}{field} is missing: must be {allowed}"
    return f"{place}{field} {'has' if loc[1:] else 'is'} {shown(value)}: must be {allowed}"


def _place(entry: dict[str, Any], number: int) -> str:
    names = _listed(entry.get("name"))
    named = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return f"layer {shown(', '.join(names))}: " if named else f"layer {number}: "
