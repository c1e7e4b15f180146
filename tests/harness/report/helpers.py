"""A reader of tables, for the tests of reports."""


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a markdown table by their first cell, or by their first two where the first repeats."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    body = [[cell.strip() for cell in line] for line in lines]
    first = [row[0] for row in body]
    return {row[0] if first.count(row[0]) == 1 else f"{row[0]} {row[1]}": row[1:] for row in body}
