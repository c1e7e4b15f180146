"""A command of the harness that cannot begin, for want of packages or of itself, says so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness


def ends(folder, *arguments, without):
    """The exit code and standard error of a command for which some packages seem not to be installed."""
    hide = "".join(f"sys.modules[{name!r}] = None\n" for name in without)  # an import of it fails
    (folder / "sitecustomize.py").write_text(f"import sys\n{hide}")
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("harness.run", ["torch"]),
        ("harness.run", ["pandas", "pydantic", "yaml", "nvtx"]),
        ("harness accuracy", ["torch"]),
        ("harness tune", ["scipy"]),
        ("harness report tables", ["pandas"]),
        ("harness report figures", ["matplotlib", "PIL"]),
    ],
)
def test_what_is_missing_and_the_remedy_are_one_sentence(tmp_path, command, missing):
    code, said = ends(tmp_path, *command.split(), without=missing)
    assert code == 2 and said.count("\n") == 1
    assert said.startswith(f"{command}: {sys.executable} lacks {', '.join(missing)}, which the extra 'bench' installs")
    assert "make bench" in said and "pip install -e '.[bench]'" in said


def test_a_bare_interpreter_has_nothing():
    done = subprocess.run([sys.executable, "-ES", "-m", "harness.run"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "torch" in done.stderr


def test_the_list_of_layers_needs_no_package_for_drawing(tmp_path):
    assert ends(tmp_path, "harness.run", "--device", "cpu", "--list", without=["matplotlib", "PIL", "scipy"]) == (0, "")


@pytest.mark.parametrize("old", ["harness.report.tables", "harness.measure.accuracy"])
def test_a_module_that_is_no_command_says_so(tmp_path, old):
    code, said = ends(tmp_path, old, without=())
    assert code == 2 and said.count("\n") == 1
    assert said.startswith(f"{old} is no command: ") and f"'python -m {old.replace('.', ' ')}'" in said


def test_every_program_of_the_harness_is_known():
    root = Path(harness.__file__).parent
    guarded = [path for path in root.rglob("*.py") if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    names = {".".join(("harness", *path.relative_to(root).with_suffix("").parts)) for path in guarded}
    assert {name.removesuffix(".__main__") for name in names} == {*harness._COMMANDS, *harness._STARTED}
