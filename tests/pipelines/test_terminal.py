"""Tables on standard output say what they were given."""

from __future__ import annotations

import pytest

from gridlaw.pipelines.terminal import results_console


def test_square_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons and paths have them; as markup they vanish, or are an error."""
    from rich.table import Table

    reason = "IndexError: x[0] of [bold] in /data/[a-z]*.jsonl [/b]"
    table = Table(title=reason, width=200)
    table.add_column("reason")
    table.add_row(reason)
    results_console().print(table)
    results_console().print(reason)
    assert capsys.readouterr().out.count(reason) == 3
