"""Tables in, laws out: columns, selectors, the command, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from gridlaw.pipelines.laws.command import make_fit_command
from gridlaw.pipelines.laws.selectors import parse_selectors, select_rows
from gridlaw.pipelines.laws.table import fit_frame, fit_table, read_table
from gridlaw.platform.errors import BadInput

DATA = Path(__file__).parents[2] / "data" / "swa128_longppl.csv"
SETTINGS = {"intervals": "none", "profiles": False}


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.read_csv(DATA)


def test_the_command_prints_the_authors_table_as_json() -> None:
    options = ["--target", "log:longppl", "--fit", "scale=S1,S2,S3", "--verify", "scale=S4", "--json"]
    ran = CliRunner().invoke(make_fit_command(), [str(DATA), *options, "--resamples", "100"], catch_exceptions=False)
    assert ran.exit_code == 0
    printed = json.loads(ran.stdout)
    assert printed["objective"] <= 1.9516e-4
    assert (round(printed["alpha"], 4), round(printed["beta"], 4)) == (0.4742, 0.1745)
    assert (round(printed["r2_fit"], 4), round(printed["r2_verify"], 4)) == (0.9881, 0.9790)
    assert printed["converged"] is True
    assert printed["agreeing_starts"] > 100
    assert printed["at_bounds"] == []
    for name in ("a", "alpha", "b", "beta", "split"):
        low, high = printed["intervals"][name]
        assert low < high
    assert len(printed["verified"]["points"]) == 6
    assert set(printed["profile_intervals"]) == {"alpha", "beta"}


def test_the_command_prints_tables_for_people() -> None:
    options = ["--target", "log:longppl", "--verify", "scale=S4", "--at", "476852480,4.77e11", "--resamples", "50"]
    ran = CliRunner().invoke(make_fit_command(), [str(DATA), *options], catch_exceptions=False)
    for words in (
        "alpha",
        "0.4742",
        "R² held out",
        "held-out points",
        "at N=4.76852e+08",
        "identified by these points",
    ):
        assert words in ran.output


def test_the_command_reads_a_grid_through_the_loader(frame: pd.DataFrame) -> None:
    asked = []

    def load(name: str) -> pd.DataFrame:
        asked.append(name)
        return pd.concat([frame.assign(architecture="one"), frame.assign(architecture="two", D=frame.D * 2)])

    arguments = ["my-grid", "--target", "longppl", "--json", "--intervals", "none"]
    ran = CliRunner().invoke(make_fit_command(load), arguments, catch_exceptions=False)
    assert asked == ["my-grid"]
    laws = json.loads(ran.stdout)["laws"]
    assert [law["architecture"] for law in laws] == ["one", "two"]
    # doubling every D moves b by 2^beta and nothing else
    assert laws[1]["beta"] == pytest.approx(laws[0]["beta"], rel=1e-4)
    assert laws[1]["b"] == pytest.approx(laws[0]["b"] * 2 ** laws[0]["beta"], rel=1e-3)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_same_law(frame: pd.DataFrame, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"points.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="," if ending == "csv" else "\t")
    law = fit_table(path, "log:longppl", "scale=S1,S2,S3", **SETTINGS)[0].law
    assert law.alpha == pytest.approx(0.4742448, abs=1e-6)


def test_columns_are_mapped_by_role(frame: pd.DataFrame) -> None:
    renamed = frame.rename(columns={"N": "parameters", "D": "seen"})
    columns = {"N": "parameters", "D": "seen"}
    assert fit_frame(renamed, "longppl", columns=columns, **SETTINGS)[0].law.num_points == 23
    with pytest.raises(BadInput, match="--columns N=NAME"):
        fit_frame(renamed, "longppl", **SETTINGS)


def test_selectors_combine_and_compare(frame: pd.DataFrame) -> None:
    def count(text: str) -> int:
        return int(select_rows(frame, parse_selectors(text, option="fit"), option="fit").sum())

    assert count("scale=S1,S4") == 11
    assert count("scale=S1;D<5e9") == 2
    assert count("scale!=S1") == 18
    assert count("N=14999424") == 5
    assert count("D>=6.1034201102e10") == 2


def test_excluded_rows_are_neither_fitted_nor_verified(frame: pd.DataFrame) -> None:
    result = fit_frame(frame, "longppl", verify="scale=S4", exclude="D>1e11", **SETTINGS)[0]
    assert result.law.num_points == 17
    assert result.verification is not None
    assert len(result.verification.values) == 5
    assert result.notes == ("1 rows excluded",)


def test_seeds_make_trunks_of_their_own(frame: pd.DataFrame) -> None:
    twice = pd.concat([frame.assign(seed=0), frame.assign(seed=1, longppl=frame.longppl * 1.01)])
    law = fit_frame(twice, "longppl", **SETTINGS)[0].law
    assert (law.num_points, law.num_groups) == (46, 8)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"target": "longpll"}, "Nearest: longppl"),
        ({}, {"target": "longppl", "fit": "scal=S1"}, "Nearest: scale"),
        ({}, {"target": "longppl", "fit": "scale=S9"}, "S1, S2, S3, S4"),
        ({}, {"target": "longppl", "fit": "scale"}, "scale=S1,S2,S3"),
        ({}, {"target": "longppl", "fit": "scale=S1,S2", "verify": "scale=S2"}, "also fitted"),
        ({}, {"target": "longppl", "fit": "scale=S1"}, "one scale only"),
        ({}, {"target": "longppl", "exclude": "N>1"}, "no row"),
        ({}, {"target": "longppl", "columns": {"M": "N"}}, "one of N, D"),
        ({}, {"target": "longppl", "columns": {"N": "n_params"}}, "a column of the table"),
        ({"longppl": 0.9}, {"target": "log:longppl"}, "above 1"),
        ({"longppl": np.nan}, {"target": "longppl"}, "longppl in row 3 is 'missing'"),
        ({"longppl": -2.0}, {"target": "longppl"}, "longppl in row 3 is -2.0"),
        ({"N": 15.0}, {"target": "longppl"}, "not in thousands, millions or billions"),
    ],
)
def test_mistakes_get_one_message(frame: pd.DataFrame, change: dict, arguments: dict, message: str) -> None:
    for column, value in change.items():
        frame[column] = frame[column].astype(float)
        frame.loc[3, column] = value
    with pytest.raises(BadInput) as caught:
        fit_frame(frame, **arguments, **SETTINGS)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_that_contradict_each_other_are_refused(frame: pd.DataFrame) -> None:
    double = pd.concat([frame, frame.iloc[:1].assign(longppl=19.0)], ignore_index=True)
    with pytest.raises(BadInput, match="one value per architecture, scale, budget and seed"):
        fit_frame(double, "longppl", **SETTINGS)


@pytest.mark.parametrize(("name", "text"), [("none.csv", None), ("empty.csv", "N,D,loss\n"), ("points.xlsx", "x")])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match="table"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("option", [["--at", "5"], ["--bound", "alpha=3"], ["--columns", "N"]])
def test_malformed_options_are_refused(option: list[str]) -> None:
    ran = CliRunner().invoke(make_fit_command(), [str(DATA), "--target", "longppl", *option])
    assert isinstance(ran.exception, BadInput)


def test_fitting_loads_neither_torch_nor_mlflow_and_the_command_no_scipy() -> None:
    code = (
        "import sys; import gridlaw.pipelines.laws.command; assert 'scipy' not in sys.modules;"
        "import gridlaw.pipelines.laws.table, gridlaw.pipelines.laws.suggest, gridlaw.pipelines.laws.figures;"
        "loaded = {'torch', 'mlflow', 'lightning', 'ray', 'matplotlib'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
