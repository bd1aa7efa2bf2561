"""The needles' heat maps: depth over length, the right way round, for both measures, as files."""

from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.evaluations.figures import heat_maps
from gridlaw.pipelines.laws.figures import save

DETAILS: dict[str, Any] = {
    "lengths": [64, 128, 256],
    "depths": [0.0, 1.0],
    "rank_grid": [[1.0, 0.9], [0.8, 0.7], [0.6, 0.5]],  # lengths × depths
    "generate_grid": [[0.0, 0.1], [0.2, 0.3], [0.4, 0.5]],
    "samples_per_cell": 10,
    "chance": 0.125,
}


def test_rows_are_depths_and_columns_are_lengths() -> None:
    maps = heat_maps({"details": DETAILS}, title="full/n3")
    assert set(maps) == {"rank", "generate"}
    cells = maps["rank"].data[0]
    assert list(cells.x) == ["64", "128", "256"] and list(cells.y) == ["0%", "100%"]
    assert [list(row) for row in cells.z] == [[1.0, 0.8, 0.6], [0.9, 0.7, 0.5]]
    assert (cells.zmin, cells.zmax) == (0.0, 1.0)
    assert "chance 12.5%" in maps["rank"].layout.title.text
    assert "chance" not in maps["generate"].layout.title.text


def test_other_evaluations_have_none() -> None:
    assert heat_maps({"details": {"by_distance": []}}, title="full/n3") == {}


@pytest.mark.parametrize("ending", [".png", ".svg", ".html"])
def test_files_are_whole(tmp_path: Path, ending: str) -> None:
    figure = heat_maps({"details": DETAILS}, title="full/n3")["rank"]
    content = save(figure, tmp_path / f"map{ending}").read_bytes()
    beginning = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}[ending]
    assert content.startswith(beginning)
    if ending == ".svg":
        assert b"depth of the needle" in content or content.count(b"<path") > 20
