"""The code in a source file: words and formatting do not count, every instruction does."""

import pytest

from harness.store import environment
from harness.store.code import digest, normalised

PYTHON = '''
"""A module."""

LIMIT = 48 * 1024  # bytes


class Tile:
    """A tile."""

    width: int = 64
    """Pixels."""

    def area(self, rows):
        """The area."""
        return f"{self.width * rows} // {rows!r:>4}"
'''

CUDA = r"""
// A kernel.
#define AREA(w, h) ((w) * (h))  /* of a tile */
#if WIDTH > 64 && \
    HEIGHT > 8
constexpr int LIMIT = 1'000 + 0x1f;
#endif
extern "C" __global__ void kernel(float* out) {
    asm volatile("fence; // not a comment");  // a comment with a "quote
    out[threadIdx.x] += '/' == '"' ? 1.0e-3f : x++ + y;
}
"""

TOML = """
# The constants.
[fp16x3]
launch_us = 2.5  # of a kernel
"""

SAME = {
    "a comment": (".py", ("# bytes", "# of shared memory")),
    "the docstring of a module": (".py", ("A module.", "The module.")),
    "the docstring of a class": (".py", ("A tile.", "Some tile.")),
    "the docstring of an attribute": (".py", ('    """Pixels."""\n', "")),
    "no docstring": (".py", ('        """The area."""\n', "")),
    "a blank line": (".py", ("\n    width", "\n\n    width")),
    "spaces": (".py", ("48 * 1024", "48*1024")),
    "a line broken in brackets": (".py", ("(self, rows)", "(\n    self,\n    rows,\n)")),
    "a line comment": (".cu", ("// A kernel.", "// The kernel, \\\n on two lines")),
    "a comment in a directive": (".cu", ("/* of a tile */", "")),
    "a comment with a quote": (".cu", ('// a comment with a "quote', "")),
    "a comment over lines": (".cu", ("{\n", "{ /* several\n\n lines */\n")),
    "indentation": (".cu", ("\n    out", "\n  out")),
    "an empty line": (".cu", ("\n#if", "\n\n\n#if")),
    "a space around an operator": (".cu", ("1'000 + 0x1f", "1'000+0x1f")),
    "a statement on two lines": (".cu", (" += ", "\n        +=\n ")),
    "a space after #": (".cu", ("#define", "#  define")),
    "a directive on one line": (".cu", ("&& \\\n    HEIGHT", "&& HEIGHT")),
    "a comment of constants": (".toml", ("# of a kernel", "")),
    "a constant as it is written": (".toml", ("2.5", "2.50")),
}

CHANGED = {
    "a constant": (".py", ("48", "49")),
    "a name": (".py", ("rows", "columns")),
    "a text": (".py", (" // ", " / ")),
    "the format of a number": (".py", (":>4", ":>5")),
    "an annotation": (".py", ("width: int", "width: float")),
    "a statement": (".py", ("        return", "        print()\n        return")),
    "an instruction in a text": (".cu", ("fence;", "bar;")),
    "// in a text": (".cu", ("// not a comment", "/ not a comment")),
    "a space in a text": (".cu", ("fence; ", "fence;  ")),
    "an operator": (".cu", ("+=", "-=")),
    "where ++ stands": (".cu", ("x++ + y", "x + ++y")),
    "a number": (".cu", ("1'000", "1'001")),
    "a character": (".cu", ("'/'", "'*'")),
    "a macro": (".cu", ("((w) * (h))", "((w) + (h))")),
    "the arguments of a macro": (".cu", ("AREA(w, h)", "AREA (w, h)")),
    "a condition": (".cu", ("HEIGHT > 8", "HEIGHT > 9")),
    "a statement that joins a directive": (".cu", ("#endif\n", "#endif ")),
    "a directive that is none": (".cu", ("\n#endif", " #endif")),
    "a constant of a model": (".toml", ("2.5", "2.6")),
    "a section": (".toml", ("[fp16x3]", "[fp16x4]")),
}
TEXTS = {".py": PYTHON, ".cu": CUDA, ".toml": TOML}


def edited(suffix, change):
    old, new = change
    assert old in TEXTS[suffix], "the change must find its place"
    return normalised(TEXTS[suffix].replace(old, new), suffix)


@pytest.mark.parametrize(("suffix", "change"), SAME.values(), ids=SAME)
def test_words_and_formatting_do_not_count(suffix, change):
    assert edited(suffix, change) == normalised(TEXTS[suffix], suffix)


@pytest.mark.parametrize(("suffix", "change"), CHANGED.values(), ids=CHANGED)
def test_code_counts(suffix, change):
    assert edited(suffix, change) != normalised(TEXTS[suffix], suffix)


def test_a_format_specification_is_the_same_for_every_version_of_python():
    assert "value=''" not in normalised('f"{number:{width}}"', ".py")
    assert normalised('f"{number:{width}}"', ".py") != normalised('f"{number:{width}} "', ".py")
    assert normalised('f("")', ".py") != normalised("f()", ".py")


def test_a_raw_string_is_kept_to_the_letter():
    assert '''R"x(a  // b)" c)x"''' in normalised("""auto s = R"x(a  // b)" c)x"; // words""", ".cu")


def test_headers_are_read_as_kernels_are():
    assert normalised(CUDA, ".cuh") == normalised(CUDA, ".cu")


def test_every_file_of_the_library_has_a_digest_of_its_own():
    """Files that hold words alone, such as a package's __init__.py, are alike."""
    paths = [p for p in (environment.ROOT / "cuconv").rglob("*") if p.suffix in (".py", ".cu", ".cuh", ".toml")]
    texts = [normalised(path.read_text(), path.suffix) for path in paths]
    assert len({digest(path) for path in paths}) == len(set(texts)) > 20
