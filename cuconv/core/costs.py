"""The constants of the algorithms' cost models: a file for each precision with a section for each algorithm.

The files are costs.toml and costs_tf32.toml, and for tensors in channels last costs_fp16.toml and
costs_tf32_channels_last.toml. `python -m harness tune` fits the constants and writes the files. An algorithm declares
its constants as a frozen dataclass of floats and makes every field by `constant`. A new algorithm starts with a section
of guesses, written by hand, for each of its precisions; the fit starts from them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cuconv.core.problem import BF16, FP16, FP32, TF32, TF32_LAST

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FILES = {
    FP32: "costs.toml",
    TF32: "costs_tf32.toml",
    TF32_LAST: "costs_tf32_channels_last.toml",
    FP16: "costs_fp16.toml",
    BF16: "costs_fp16.toml",
}
PATHS = {precision: Path(__file__).with_name(name) for precision, name in _FILES.items()}

MAX_CONSTANT = sys.float_info.max  # microseconds; larger integers are no float

Costs = TypeVar("Costs", bound="DataclassInstance")


class CostsError(RuntimeError):
    """A file of constants lacks one, has one too many, or has a wrong value; the message says which."""


def constant(meaning: str) -> Any:
    """A dataclass field for one constant in microseconds; `meaning` says what takes this time, and is its comment."""
    return field(metadata={"meaning": meaning})


def load(kind: type[Costs], algorithm: str, precision: str = FP32) -> Costs:
    """The constants of an algorithm for a precision, read from the precision's file.

    Raises CostsError where the file is not readable or a constant is missing, unknown or not above 0.
    """
    path = PATHS[precision]
    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get(algorithm)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, or too long a number
        raise CostsError(f"{path} is not readable ({error}): restore it from git") from None
    names = [f.name for f in fields(kind)]
    if not isinstance(section, dict):
        raise CostsError(f"{path} has no section [{algorithm}]: add it with a guess for each of {', '.join(names)}")
    wrong = [name for name in section if name not in names] or [name for name in names if name not in section]
    if wrong:
        raise CostsError(f"{path}: [{algorithm}] must have {', '.join(names)} and nothing else, look at {wrong[0]!r}")
    for name, value in section.items():
        if type(value) not in (int, float) or not 0 < value <= MAX_CONSTANT:
            raise CostsError(f"{path}: [{algorithm}] {name} is {_shown(value)}: must be a number above 0")
    return kind(**{name: float(section[name]) for name in names})


def _shown(value: Any) -> str:
    """A value in a message; Python has no digits for a number that is too long."""
    return f"{value:#x}" if isinstance(value, int) and abs(value) > MAX_CONSTANT else repr(value)


def text(sections: dict[str, Any], heading: list[str], origins: Mapping[str, str] = {}) -> str:
    """The text of a file of constants: the heading as comments, then a section for each algorithm by name.

    origins: where the constants of an algorithm come from, a comment after its name.
    """
    lines = [f"# {line}" for line in heading]
    for algorithm, costs in sections.items():
        lines += ["", f"[{algorithm}]" + (f"  # {origins[algorithm]}" if algorithm in origins else "")]
        entries = [(f"{f.name} = {getattr(costs, f.name):.3g}", f.metadata["meaning"]) for f in fields(costs)]
        width = max(len(entry) for entry, _ in entries)
        lines += [f"{entry:{width}}  # {meaning}" for entry, meaning in entries]
    return "\n".join(lines) + "\n"
