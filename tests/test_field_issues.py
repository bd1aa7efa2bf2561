"""docs/field-issues.md: each kind of failure names tests that exist, and each of them says which kind it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "field-issues.md"


def rows() -> list[tuple[str, str, list[str]]]:
    """(kind, reports, tests) of the table."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] not in ("kind", "---"):
            found.append((cells[0], cells[1], re.findall(r"`([^`]+::[^`]+)`", cells[3])))
    return found


def docstring(test: str) -> str:
    """The docstring of a test given as PATH::NAME, below tests/."""
    path, _, name = test.partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.get_docstring(function) or ""


def test_the_table_has_the_kinds() -> None:
    assert len(rows()) >= 24
    assert len({kind for kind, _, _ in rows()}) == len(rows())


@pytest.mark.parametrize(
    ("kind", "reports", "tests"), rows(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_its_tests_exist_and_name_it(kind: str, reports: str, tests: list[str]) -> None:
    assert tests, f"no test for: {kind}"
    marks = re.findall(r"#\d+", reports) or [reports]
    for test in tests:
        told = docstring(test)
        assert any(mark in told for mark in marks), f"{test} names none of {marks}"
