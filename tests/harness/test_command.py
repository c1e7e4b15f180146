"""How commands end: one line on standard error, and an exit code that tells why."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

import harness
from cuconv.core.costs import CostsError
from harness import command
from harness.__main__ import VERBS
from harness.command import exit_code
from harness.contenders.base import Unavailable
from harness.errors import CatalogueError, GpuLost, ResultsError, UsageError
from harness.report.command import VERBS as REPORTS


def ends(error, go_on=""):
    def work():
        if error is not None:
            raise error

    return exit_code("harness.it", work, go_on)


def test_a_command_that_is_done_says_nothing(capsys):
    assert ends(None) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [UsageError, ResultsError, CatalogueError, Unavailable, CostsError])
def test_a_mistake_of_the_user_is_one_line(kind, capsys):
    assert ends(kind("--runs 10: must be from 1 to 9"), "go on") == 2
    assert capsys.readouterr() == ("", "harness.it: --runs 10: must be from 1 to 9\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (GpuLost("the GPU is lost"), 1, "harness.it: the GPU is lost; the rows so far are kept; add --resume\n"),
        (KeyboardInterrupt(), 130, "harness.it: interrupted; the rows so far are kept; add --resume\n"),
    ],
)
def test_a_stop_says_how_to_go_on(error, code, said, capsys):
    assert ends(error, "add --resume") == code
    assert capsys.readouterr().err == said


def test_where_nothing_is_kept_nothing_is_promised(capsys):
    assert ends(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "harness.it: interrupted\n"


@pytest.mark.parametrize("module", [module for verbs in (VERBS, REPORTS) for module, _ in verbs.values()])
def test_an_abbreviated_option_is_refused(module):
    with pytest.raises(SystemExit) as end:
        import_module(module).main(["--hel"])
    assert end.value.code == 2


def test_without_a_verb_all_are_listed(capsys):
    assert command.verb("harness report", REPORTS, []) == 2
    said = capsys.readouterr().err
    assert all(verb in said for verb in REPORTS)


@pytest.mark.parametrize(
    ("typed", "file"),
    [
        (["--contender", "a.py", "--contender=b.py"], "b.py"),
        (["--contender=a.py", "--list", "--contender", "b.py"], "b.py"),
        (["--contender", "torch", "cuconv"], None),
        (["--conten", "a.py"], None),
        (["--contender"], None),
    ],
)
def test_of_several_contenders_the_last_counts(monkeypatch, typed, file):
    monkeypatch.setenv("CUCONV_CONTENDER", "")
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "harness.run", *typed])
    harness._name_contender()
    assert os.environ["CUCONV_CONTENDER"] == (os.path.abspath(file) if file else "")


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        ends(ZeroDivisionError())


@pytest.mark.parametrize("lines", [1, 10_000], ids=["within the buffer", "more than the buffer"])
def test_a_reader_that_is_gone_is_no_traceback(lines):
    program = f"from harness.command import exit_code; exit(exit_code('it', lambda: print('line\\n' * {lines})))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_value_with_line_ends_and_escapes_is_shown_on_one_line(capsys):
    assert ends(UsageError("--out a\nb\x1b[31m\udcff: must be a folder")) == 2
    assert capsys.readouterr().err == "harness.it: --out a\\nb\\x1b[31m\\udcff: must be a folder\n"
