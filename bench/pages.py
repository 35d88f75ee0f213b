"""Tables in the pages of docs/, which measurements write."""

import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def write_table(page, head, rows):
    """Replaces the rows of the table whose first line begins with `head`."""
    path = DOCS / page
    lines = path.read_text().split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith(head)]
    if len(starts) != 1:
        sys.exit(f"{page} has {len(starts)} tables that begin with {head}")
    first = starts[0] + 2
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    lines[first:last] = ["| " + " | ".join(row) + " |" if any(row) else "|" for row in rows]
    path.write_text("\n".join(lines).replace("|  |", "| |"))


def table(page, head):
    """The rows of a table, as lists of cells."""
    lines = (DOCS / page).read_text().split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(head)) + 2
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[first:last]]
