"""The folders of the harness import downwards only."""

import ast
import re
from pathlib import Path

import pytest

import harness

ROOT = Path(harness.__file__).parent
# From the lowest to the highest. A folder imports itself, those before it, and the modules of LOW.
ROOMS = ("store", "cases", "stopwatch", "contenders", "sweep", "experiments", "report", "tune")
LOW = ("command", "errors", "isolation", "libcudnn", "precision", "progress", "streams", "variables")


def imported(path: Path) -> set[str]:
    """The names under harness that a file imports, such as "sweep" for harness.sweep.records."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("harness.")}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_lower_ones_alone(room):
    allowed = {*LOW, *ROOMS[: ROOMS.index(room) + 1]} | ({"experiment"} if room == "experiments" else set())
    for path in (ROOT / room).rglob("*.py"):
        assert imported(path) <= allowed, path


def test_the_lowest_modules_import_each_other_alone():
    for name in LOW:
        assert imported(ROOT / f"{name}.py") <= set(LOW), name


def test_every_folder_is_a_room():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ROOMS)


@pytest.mark.parametrize("folder", ["cuconv", "tests/cuconv", "tests/kernels", "tests/packaging"])
def test_the_library_and_its_tests_stand_without_the_harness(folder):
    for path in (ROOT.parent / folder).rglob("*.py"):
        assert not re.search(r"^\s*(from|import) harness", path.read_text(), re.MULTILINE), path
