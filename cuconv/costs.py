"""The constants of the algorithms' cost models: a file for each precision, in it a section for each algorithm.

They are costs.toml and costs_tf32.toml, written by `python -m harness.tune`. An algorithm declares its constants as a
frozen dataclass of floats, every field made by `constant`, and reads them by `load(Costs, NAME, precision)` for each
precision that it computes in. A new algorithm starts with sections of guesses written by hand; the fit starts there.
"""

from __future__ import annotations

import tomllib
from dataclasses import field, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from cuconv.problem import FP32, TF32

PATHS = {FP32: Path(__file__).with_name("costs.toml"), TF32: Path(__file__).with_name("costs_tf32.toml")}

Costs = TypeVar("Costs")


class CostsError(RuntimeError):
    """A file of costs that is not what the algorithms expect; the message is one sentence."""


def constant(meaning: str) -> Any:
    """A field of a class of costs; its meaning, with what it is a time of, is the comment in those files."""
    return field(metadata={"meaning": meaning})


def load(kind: type[Costs], algorithm: str, precision: str = FP32) -> Costs:
    """The constants of an algorithm in a precision; raises CostsError where one is missing, unknown, or not above 0."""
    path = PATHS[precision]
    try:
        section = tomllib.loads(path.read_text()).get(algorithm)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CostsError(f"{path} is not readable ({error}): restore it from git") from None
    names = [f.name for f in fields(kind)]
    if not isinstance(section, dict):
        raise CostsError(f"{path} has no section [{algorithm}]: add it with a guess for each of {', '.join(names)}")
    wrong = [name for name in section if name not in names] or [name for name in names if name not in section]
    if wrong:
        raise CostsError(f"{path}: [{algorithm}] must have {', '.join(names)} and nothing else, look at {wrong[0]!r}")
    for name, value in section.items():
        if not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
            raise CostsError(f"{path}: [{algorithm}] {name} is {value!r}: must be a number above 0")
    return kind(**{name: float(section[name]) for name in names})


def text(sections: dict[str, Any], heading: list[str]) -> str:
    """A file for the costs of each algorithm by its name, with a comment on every constant."""
    lines = [f"# {line}" for line in heading]
    for algorithm, costs in sections.items():
        lines += ["", f"[{algorithm}]"]
        entries = [(f"{f.name} = {getattr(costs, f.name):.3g}", f.metadata["meaning"]) for f in fields(costs)]
        width = max(len(entry) for entry, _ in entries)
        lines += [f"{entry:{width}}  # {meaning}" for entry, meaning in entries]
    return "\n".join(lines) + "\n"
