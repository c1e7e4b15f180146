"""Links between pages, to headings and to files: those of every page, and the check itself."""

from pathlib import Path

import pytest

from tests.docs.links import anchors, broken

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere_on_github(page):
    assert broken(ROOT / page, ROOT) == []


def test_anchors_are_those_of_github():
    text = "# The `auto` way: 1x1, and more\n```\n# no heading\n```\n## [A b](c.md)_d\n## Twice\n## Twice\n"
    assert anchors(text) == {"the-auto-way-1x1-and-more", "a-b_d", "twice", "twice-1"}


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "repository" / "page.md"
    page.parent.mkdir()
    (tmp_path / "outside.md").touch()
    page.write_text(
        "# Here\n[a](#here) [b\nc](page.md#here) ![d](page.md) [e](https://example.com/x#y) `[f](code.md)`\n"
        "```\n[g](code.md)\n```\n[h](#there) [i](missing.md) [j](page.md#there) [k](../outside.md)\n"
    )
    assert broken(page, page.parent) == ["#there", "missing.md", "page.md#there", "../outside.md"]
