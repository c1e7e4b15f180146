"""Links of a Markdown page to files and headings, by the rules of GitHub."""

import re
from collections import Counter
from pathlib import Path

CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.*?)[ #]*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:")  # https: and the like


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings: lower case, without punctuation, and numbered where they repeat."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path, root: Path) -> list[str]:
    """The relative links of a page that lead to no file of the repository at `root`, or to no heading."""
    return [link for link in LINK.findall(CODE.sub("", page.read_text())) if not _leads_somewhere(link, page, root)]


def _leads_somewhere(link: str, page: Path, root: Path) -> bool:
    if ELSEWHERE.match(link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(root):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text()))
