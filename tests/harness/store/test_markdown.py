"""The one writer of markdown tables."""

from harness.store.markdown import markdown


def test_markdown_is_aligned_for_the_terminal():
    assert markdown(["name", "us"], [["a", 1], ["longer", 22.5]]).splitlines() == [
        "| name   |   us |",
        "| ------ | ---: |",
        "| a      |    1 |",
        "| longer | 22.5 |",
    ]
