"""gridlaw fit and compare on a table: diagnostics, figures, rankings."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main

TABLE = Path(__file__).resolve().parents[2] / "data" / "swa128_longppl.csv"


def gridlaw(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture
def two_architectures(tmp_path: Path) -> Path:
    """The released table twice, the second 3 % worse throughout."""
    path = tmp_path / "two.csv"
    with TABLE.open() as source, path.open("w") as target:
        target.write("architecture,scale,N,D,longppl\n")
        for row in csv.DictReader(source):
            for name, factor in (("better", 1.0), ("worse", 1.03)):
                target.write(f"{name},{row['scale']},{row['N']},{row['D']},{float(row['longppl']) * factor}\n")
    return path


def test_compare_ranks_and_finds_and_draws_the_gap(
    two_architectures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(two_architectures), "--target", "log:longppl", "--at", "476852480,4.77e11"]
    assert gridlaw(*arguments, "--json", "--figures", str(tmp_path / "figures")) == 0
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {"curves.svg", "gaps.svg"}
    assert "minus better" in (tmp_path / "figures" / "gaps.html").read_text()
    found = json.loads(capsys.readouterr().out)
    assert [row["architecture"] for row in found["ranking"]] == ["better", "worse"]
    (gap,) = found["gaps_to_first"]
    assert gap["gap"] == pytest.approx(0.0296, abs=0.01)  # log 1.03
    assert gap["low"] < 0 < gap["high"]  # these points cannot tell them apart
    assert 0.5 < found["same_order"] < 1


def test_fit_tells_diagnostics_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "figures"
    arguments = ["fit", str(TABLE), "--target", "log:longppl", "--diagnostics", "--figures", str(folder)]
    assert gridlaw(*arguments, "--resamples", "100") == 0
    told = capsys.readouterr().out
    for words in ("fitted without one scale", "influence of each point", "forms by error"):
        assert words in told
    assert {path.suffix for path in folder.iterdir()} == {".html", ".svg", ".png"}
    assert len(list(folder.glob("*.svg"))) == 5


def test_diagnostics_are_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", str(TABLE), "--target", "log:longppl", "--intervals", "none", "--json"]
    assert gridlaw(*arguments, "--diagnostics") == 0
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    num_points = len(TABLE.read_text().splitlines()) - 1
    assert len(found["residuals"]) == len(found["influence of each point"]) == num_points
    assert {"log_residual", "z", "outlier"} <= set(found["residuals"][0])
    assert {row["form"] for row in found["forms by error on points left out in turn"]} == {"nd", "nde", "d", "n"}
    assert gridlaw(*arguments) == 0
    assert "diagnostics" not in json.loads(capsys.readouterr().out)


def test_an_architecture_may_have_a_slash_in_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "one.csv"
    lines = TABLE.read_text().splitlines()
    table.write_text("\n".join([f"architecture,{lines[0]}", *(f"swa/128,{line}" for line in lines[1:])]))
    folder = tmp_path / "figures"
    arguments = ["fit", str(table), "--target", "log:longppl", "--intervals", "none", "--figures", str(folder)]
    assert gridlaw(*arguments) == 0, capsys.readouterr().err
    assert {"curves-swa-128.html", "residuals-swa-128.svg"} <= {path.name for path in folder.iterdir()}


def test_a_place_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert gridlaw("compare", str(TABLE), "--at", "S5/1000N") == 2
    assert "N,D" in capsys.readouterr().err
