"""Settings of Sphinx, by which `make docs` builds these pages as a site, with an API reference from the docstrings."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = html_title = "cuConv"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"  # it shows the repository's README.md; docs/README.md is the page "All pages"
myst_heading_anchors = 3  # the anchors that GitHub gives the headings
html_theme = "furo"
html_copy_source = False
smartquotes = False  # "auto" is a string of Python
highlight_language = "none"  # of a block that names no language
default_role = "py:obj"  # `prepare` in a docstring leads to its entry
python_maximum_signature_line_length = 100

ROW = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*) {2,}(\S.*)")  # "stride_h, stride_w      text", a line of a docstring
CODE_OR_MARKUP = re.compile(r"(`[^`]*`)|([*|\\]|_\b)")
REPOSITORY = "https://github.com/cuconv/cuconv/blob/main/"
FOLDERS = {"docs/": "", "plots/": "../plots/"}
FROM_ROOT = re.compile(r"\]\((docs/|plots/|(?!\w+:))")  # the start of a link in README.md
LINK = re.compile(r"\]\((\w+)\.md\)")
PAGE = re.compile(r"\bdocs/(\w+)\.md\b")


def make_front(app, page, source):
    """Make the repository's README.md the first page, and each section of docs/README.md a section of the contents.

    A page that docs/README.md leaves out is a warning of Sphinx.
    """
    if page != root_doc:
        return
    front = (app.srcdir.parent / "README.md").read_text("utf-8")
    source[0] = FROM_ROOT.sub(lambda link: f"]({FOLDERS.get(link[1], REPOSITORY)}", front)
    source[0] += "\n```{toctree}\n:hidden:\nREADME\n```\n"
    for section in (app.srcdir / "README.md").read_text("utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        pages = "\n".join(dict.fromkeys(LINK.findall(text)))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n{pages}\n```\n"


def as_markup(app, what, name, item, options, lines):
    """Turn a docstring, which is plain text, into reStructuredText.

    A line such as "stride     rows and columns ..." and the indented lines below it become an entry of a definition
    list. Other indented lines are code. A constant, such as H200, has only the docstring of its class, which is left
    out.
    """
    text, lines[:] = [] if what == "data" else list(lines), []
    inside = ""  # what the last line was part of: a list, code or neither
    for line in text:
        if row := ROW.fullmatch(line):
            inside = "list"
            names = ", ".join(f"``{name}``" for name in row[1].split(", "))
            lines += [names, f"    {escaped(row[2])}"]
        elif line.startswith(" ") and inside == "list":
            lines.append(f"    {escaped(line.strip())}")
        elif line.startswith(" "):
            lines += [line] if inside == "code" else [".. code-block:: python", "", line]
            inside = "code"
        else:
            inside = inside if inside == "code" and not line else ""
            lines.append(escaped(line))


def escaped(text):
    """Text whose asterisks and the like stand for themselves, but not within backquotes, and with links to pages."""
    return PAGE.sub(r":doc:`\1`", CODE_OR_MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", text))


def setup(app):
    """Connect the functions above to the steps of the build that they change."""
    app.connect("source-read", make_front)
    app.connect("autodoc-process-docstring", as_markup)
