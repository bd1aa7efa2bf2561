"""Texts that turn out to be unusable in the middle of a file, when a grid under way prepares them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = [{"text": f"Document {number}: " + "some words of a text, " * 20} for number in range(1200)]


def test_a_bad_line_far_into_a_file_is_one_message_and_leaves_no_data(new_workplace: Callable[[], Any]) -> None:
    place = new_workplace()
    texts = place.folder / "texts.jsonl"
    lines = [json.dumps(row) + "\n" for row in ROWS]
    texts.write_text("".join([*lines[:1000], "not json\n", *lines[1000:]]))
    data = {"context": 64, "mixture": ["texts.jsonl"]}
    place.write({"architectures": ["full"], "budgets": ["2N"], "laws": [], "data": data})
    done = place.run("--plain", timeout=900)
    assert done.returncode == 2, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert len(told) == 1 and f"{texts} line 1001 is 'not json'; allowed: a JSON object" in told[0]
    assert "Traceback" not in done.stderr
    left = {path.name for path in (place.store / "data").iterdir()} if (place.store / "data").exists() else set()
    assert left == set(), "half-made data"
    assert not [run for run in place.runs("point") if run.info.status in ("RUNNING", "FINISHED")]
    (submission,) = place.runs("submission")
    assert submission.info.status == "FAILED"

    texts.write_text("".join(lines))
    done = place.run("--plain", timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(place.losses()) == 2
