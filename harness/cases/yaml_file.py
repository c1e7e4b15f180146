"""A YAML file as plain data: mappings, lists, texts and numbers, without the rest of what YAML can do.

Tags and aliases are refused: a tag asks for other types, and a few lines of aliases stand for more data than memory
holds. So are deep nesting, very long texts and very large files, which no list of layers needs.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import yaml

from harness.errors import CatalogueError
from harness.store.files import read_regular

MAX_BYTES = 2**20  # a file has no more: some ten thousand layers
MAX_DEPTH = 20  # lists and mappings in each other
MAX_TEXT = 500  # characters in a text or a number
SHOWN = 60  # characters that a message shows of a value

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the parser in C is ten times as fast


class _Loader(_Base):
    """Refuses a key that stands twice, where plain YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {shown(key.value)} stands twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises CatalogueError where the file cannot be read or holds something else."""
    try:
        content = read_regular(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CatalogueError(f"{path} has more than {MAX_BYTES} bytes, which are the most that are read: divide it")
        text = content.decode("utf-8")
        _check_events(text)
        data = yaml.load(text, _Loader)
    except OSError as error:
        raise CatalogueError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = min(error.problem_mark.line, text.count("\n")) + 1 if error.problem_mark else "?"
        raise CatalogueError(f"{path}: line {line} is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise CatalogueError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise CatalogueError(f"{path} is {shown(data)}: must be a mapping with networks or layers")
    return data


def shown(value: Any) -> str:
    """A value in a message, cut where it is long; nothing of it is printed before it is cut."""
    text = "empty" if value is None else _short.repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:  # more digits than Python converts would be an error
        return repr(x) if abs(x) < 10**SHOWN else f"a number of {x.bit_length()} bits"


_short = _Short()
_short.maxlist = _short.maxdict = _short.maxset = _short.maxtuple = 12
_short.maxstring = _short.maxother = 2 * SHOWN


def _check_events(text: str) -> None:
    """Raise yaml.MarkedYAMLError for what is not read, before any of it takes memory."""
    depth = 0
    event: Any
    for event in yaml.parse(text, _Base):
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = "an alias (*) is not read here: write the value"
        elif isinstance(event, yaml.NodeEvent) and (getattr(event, "tag", None) or "!") != "!":
            problem = "a tag (!) is not read here: leave it out"
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            problem = f"a text of {len(event.value)} characters: at most {MAX_TEXT} are read"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            problem = f"lists and mappings are nested more than {MAX_DEPTH} deep"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
