"""The table of the public names of the library, from its source files: nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path

from harness.store.markdown import NONE, markdown

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("cuconv", "cuconv.nn")  # all that their __all__ names
OTHERS = (
    "cuconv.prepared.PreparedConv2d",
    "cuconv.select.LaunchPlan",
    "cuconv.device.DeviceSpec",
    "cuconv.reference.conv2d",
)
CONSTANTS = {
    "cuconv.__version__": 'The installed version, such as "0.1.0".',
    "cuconv.device.H200": "The DeviceSpec of an H200.",
    "cuconv.device.A100": "The DeviceSpec of an A100.",
}


def api_table() -> str:
    """A line for each public name: how it is called, and the first sentence of its docstring."""
    named = [f"{module}.{name}" for module in MODULES for name in _all_of(module)]
    lines = []
    for name in [*(one for one in named if one not in CONSTANTS), *OTHERS]:
        node = _definition(name)
        lines.append([f"`{name}`", _call(node), " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())])
    lines += [[f"`{name}`", NONE, what] for name, what in CONSTANTS.items()]
    return markdown(["name", "call", "what it is"], lines, left=(0, 1, 2))


def _parsed(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text(encoding="utf-8"))


def _all_of(module: str) -> list[str]:
    """The names in a module's __all__."""
    assigned = (node for node in _parsed(module).body if isinstance(node, ast.Assign))
    (value,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    names: list[str] = ast.literal_eval(value)
    return names


def _definition(name: str) -> ast.FunctionDef | ast.ClassDef:
    """Where a function or class is defined, which modules may import from others.

    At its end a class has what it inherits from a class of its module.
    """
    module, _, last = name.rpartition(".")
    body = _parsed(module).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
            for base in map(ast.unparse, getattr(node, "bases", ())):
                node.body += classes[base].body if base in classes else []
            return node
        if isinstance(node, ast.ImportFrom) and last in (alias.name for alias in node.names):
            return _definition(f"{node.module}.{last}")
    raise LookupError(f"{name} is defined nowhere")


def _call(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The arguments of a function without their types, or those by which an object is called, or else made."""
    if isinstance(node, ast.ClassDef):
        methods = {one.name: one for one in reversed(node.body) if isinstance(one, ast.FunctionDef)}
        method = methods.get("__call__") or methods.get("__init__")
        if method is None:
            return NONE
        node = method
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    arguments.args = [one for one in arguments.args if one.arg != "self"]
    shown = ast.unparse(arguments).replace("=FP32", "='fp32'")
    return f"`({shown})`"
