"""docs/faults.md and its page of models name tests that exist, one or more in each row."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The least number of rows of each page.
PAGES = {"faults.md": 30, "faults_models.md": 15}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def rows(page: str) -> list[list[str]]:
    """Return the cells of each row that is neither a head nor a rule."""
    lines = [
        line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")
    ]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in ("fault", "---")]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_has_a_fault_a_value_and_tests_that_exist(page: str) -> None:
    found = rows(page)

    assert len(found) > PAGES[page]
    for row in found:
        assert len(row) == 3, row
        named = re.findall(r"`(tests/\S+?)::(\w+)`", row[2])
        assert named, row
        assert len(named) == row[2].count("::"), row
        for path, name in named:
            assert (ROOT / path).is_file(), f"{path} is not there"
            assert name in functions_of(path), f"{path} has no {name}"
