"""Tables of figures on stdout."""

from collections.abc import Iterable, Sequence

import click


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns: words to the left, numbers to the right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    numeric = [all(_is_number(line[i]) for line in lines[1:]) for i in range(len(heads))]
    for line in lines:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-<"
