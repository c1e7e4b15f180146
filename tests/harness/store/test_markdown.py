"""The one writer of markdown tables."""

from harness.store.markdown import markdown, units


def test_markdown_is_aligned_for_the_terminal():
    assert markdown(["name", "us"], [["a", 1], ["longer", 22.5]]).splitlines() == [
        "| name   |   us |",
        "| ------ | ---: |",
        "| a      |    1 |",
        "| longer | 22.5 |",
    ]


def test_an_error_has_no_exponent():
    assert [units(error) for error in (1.23e-7, 9.9e-5, 1.09e-3, float("nan"))] == ["1.2", "990.0", "10,900", "-"]
