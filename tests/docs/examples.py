"""The examples in Python of a page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    """The code of each block of Python in a page of the project, in order."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
