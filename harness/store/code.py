"""Source files as a compiler sees them: without comments, docstrings and formatting, so that a hash ignores words.

Equal code gives equal text under every version of Python that the project supports: a proof that one machine wrote is
checked on another.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

# The tokens of CUDA C++, by the longest match. Strings and characters come before comments, so that // in a string is
# no comment. A pp-number may have ' between digits.
_TOKEN = re.compile(
    r"""
    (?P<raw>     (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
  | (?P<text>    (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<comment> //(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<number>  \.?\d(?:[eEpP][+-]|'\w|[\w.])*)
  | (?P<name>    [A-Za-z_]\w*)
  | (?P<newline> \n)
  | (?P<space>   (?:[^\S\n]|\\\n)+)
  | (?P<symbol>  <<=|>>=|<=>|->\*|\.\.\.|\#\#|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|->|\.\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_FUNCTION_LIKE_MACRO = re.compile(r"#[^\S\n]*define[^\S\n]+\w+\(")


def digest(path: Path) -> str:
    """The SHA-256 of a source file's code: of its text without comments, docstrings and formatting."""
    return hashlib.sha256(normalised(path.read_text(encoding="utf-8"), path.suffix).encode()).hexdigest()


def normalised(text: str, suffix: str) -> str:
    """The code in a text; suffix: ".py", ".cu", ".cuh" or ".toml". Other texts are returned as they are."""
    if suffix == ".py":
        return _shown(ast.parse(text))
    if suffix in (".cu", ".cuh"):
        return " ".join(_cuda_tokens(text))
    if suffix == ".toml":
        return json.dumps(tomllib.loads(text), sort_keys=True, default=str)
    return text


def _shown(node: object) -> str:
    """A syntax tree as text. `ast.dump` would write fields that only some versions of Python have, and docstrings."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 alone ends a format specification with an empty string
        return f"JoinedStr(values={_shown([value for value in node.values if not _is_empty_string(value)])})"
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name != "kind")
        return f"{type(node).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_shown(item) for item in node if not _is_bare_string(item))}]"
    return repr(node)


def _is_empty_string(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _is_bare_string(node: object) -> bool:
    """Whether a node is a statement that consists of a string: the docstring of a module, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _cuda_tokens(text: str) -> Iterator[str]:
    """The tokens of CUDA C++. A line break is one at both ends of a preprocessor directive, and only there."""
    in_directive, at_line_start = False, True
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind == "newline":
            if in_directive:
                yield "\n"
            in_directive, at_line_start = False, True
        elif kind in ("space", "comment"):
            continue
        elif token == "#" and at_line_start:
            yield "\n"
            # "#define F(x)" has an argument, "#define F (x)" has none: a space is part of the code here alone.
            yield "#(" if _FUNCTION_LIKE_MACRO.match(text, match.start()) else "#"
            in_directive, at_line_start = True, False
        else:
            yield token
            at_line_start = False
    if in_directive:
        yield "\n"
