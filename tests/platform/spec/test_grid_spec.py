"""From a grid file to blocks, points, settings and roles in laws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import grid_from_mapping, load_grid, parse_grid

SMALL = """
name: small
architectures: [full, swa-64]
scales: [n1, n2]
budgets: [5N, 10N]
data: {context: 512}
"""


def grid(text: str = "", *, base: str = SMALL, **changes: Any) -> GridSpec:
    """The small grid with changed keys and more YAML behind it."""
    value = {**yaml.safe_load(base), **changes}
    text = yaml.safe_dump({key: inner for key, inner in value.items() if inner is not None}) + text
    return parse_grid(text, source="small.yaml", base_folder=Path("/data"))


def test_defaults_of_a_small_file() -> None:
    spec = grid()
    assert spec.name == "small"
    assert [evaluation.name for evaluation in spec.evaluate] == ["loss"]
    assert spec.training_for("full") == {}  # the modules fill in theirs
    assert spec.data_for() == {"context": 512}
    assert spec.run.accelerator == "auto"
    assert spec.run.devices_for("n1") == 1.0
    assert spec.base_folder == Path("/data")


def test_points_in_the_files_order() -> None:
    names = [point.name for point in grid(seeds=[0, 7]).points()]
    assert len(names) == 16
    assert names[:4] == ["full/n1/5N/seed0", "full/n1/10N/seed0", "full/n1/5N/seed7", "full/n1/10N/seed7"]
    assert grid().points()[0].trunk_name == "full/n1/seed0"


def test_what_an_also_block_leaves_out_is_the_main_blocks() -> None:
    spec = grid(
        also=[{"scales": ["n3"]}, {"architectures": ["full"], "scales": ["n4"], "budgets": ["2M"], "seeds": [1]}]
    )
    _, second, third = spec.blocks()
    assert [point.name for point in second.points()] == [
        f"{architecture}/n3/{budget}/seed0" for architecture in ("full", "swa-64") for budget in ("5N", "10N")
    ]
    assert [point.name for point in third.points()] == ["full/n4/2M/seed1"]


def test_blocks_may_stand_under_also_alone() -> None:
    spec = grid(
        architectures=None, scales=None, budgets=None,
        also=[{"architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]}],
    )  # fmt: skip
    assert [point.name for point in spec.points()] == ["full/n1/5N/seed0"]


def test_training_of_an_architecture_over_the_grids() -> None:
    fast = {"name": "full-lr2", "of": "full", "training": {"optimizer": {"lr": 2e-3}}}
    spec = grid(
        architectures=["full", fast], training={"batch_tokens": 4096, "optimizer": {"lr": 1e-3, "momentum": 0.9}}
    )
    assert spec.training_for("full")["optimizer"] == {"lr": 1e-3, "momentum": 0.9}
    assert spec.training_for("full-lr2") == {"batch_tokens": 4096, "optimizer": {"lr": 2e-3, "momentum": 0.9}}
    assert spec.architecture_for("full-lr2") == {"name": "full-lr2", "of": "full"}


@pytest.mark.parametrize("base", [{}, {"name": "muon"}])
def test_another_optimizer_replaces_the_block(base: dict[str, str]) -> None:
    adamw = {"name": "full-adamw", "of": "full", "training": {"optimizer": {"name": "adamw"}}}
    spec = grid(architectures=[adamw], training={"optimizer": {**base, "momentum": 0.9, "lr": 0.01}, "clip": 2})
    assert spec.training_for("full-adamw") == {"optimizer": {"name": "adamw"}, "clip": 2}


def test_a_variant_of_the_files_own_architecture() -> None:
    mine = {"name": "mine", "pattern": ["swa-8", {"mixer": "full"}], "sink": False, "training": {"clip": 2}}
    spec = grid(architectures=[mine, {"name": "mine-lr", "of": "mine", "training": {"optimizer": {"lr": 0.1}}}])
    declared = {"name": "mine", "pattern": ["swa-8", {"mixer": "full"}], "sink": False}
    assert spec.architecture_for("mine") == declared
    assert spec.architecture_for("mine-lr") == {"name": "mine-lr", "of": declared}
    assert spec.training_for("mine-lr") == {"clip": 2, "optimizer": {"lr": 0.1}}


def test_scales_of_the_file() -> None:
    spec = grid(scales=["n1", {"name": "mine", "layers": 8, "d_model": 256}])
    assert spec.scale_for("n1") == "n1"
    assert spec.scale_for("mine") == {"name": "mine", "layers": 8, "d_model": 256}


def test_evaluations_with_and_without_settings() -> None:
    spec = grid(evaluate=["loss", {"niah": {"lengths": [128, 256]}}, {"recall": None}])
    assert [(each.name, each.settings) for each in spec.evaluate] == [
        ("loss", {}), ("niah", {"lengths": [128, 256]}), ("recall", {}),
    ]  # fmt: skip


def test_roles_in_a_law() -> None:
    law = {"target": "loss", "form": ["nd", "d"], "verify": {"points": ["n2/10N"]}, "exclude": ["swa-64/n1/5N"]}
    spec = grid(laws=[law])
    roles = {point.name: role for point, role in spec.roles(spec.laws[0]).items()}
    assert [name for name, role in roles.items() if role == "verify"] == ["full/n2/10N/seed0", "swa-64/n2/10N/seed0"]
    assert [name for name, role in roles.items() if role == "exclude"] == ["swa-64/n1/5N/seed0"]
    assert Counter(roles.values()) == {"fit": 5, "verify": 2, "exclude": 1}


def test_a_verified_point_is_never_fitted_and_others_are_left_aside() -> None:
    law = {
        "target": "loss",
        "fit": {"scales": ["n1", "n2"], "budgets": ["5.0N"]},
        "verify": {"scales": ["n2"], "seeds": [0]},
    }
    spec = grid(laws=[law])
    roles = {point.name: role for point, role in spec.roles(spec.laws[0]).items() if point.architecture == "full"}
    assert roles == {
        "full/n1/5N/seed0": "fit", "full/n1/10N/seed0": None,
        "full/n2/5N/seed0": "verify", "full/n2/10N/seed0": "verify",
    }  # fmt: skip


def test_labels_of_laws() -> None:
    spec = grid(laws=[{"target": "log:longppl"}, {"target": "loss"}, {"target": "loss", "name": "few"}])
    assert [law.label for law in spec.laws] == ["log-longppl", "loss", "few"]
    assert spec.laws[0].form == ("nd",)


def test_run_settings() -> None:
    spec = grid(
        run={"devices": {"n2": 0.5}, "keep": {"every_tokens": "1B"}, "evaluations": {"loss": {"memory": "16GiB"}}},
    )
    assert (spec.run.devices_for("n1"), spec.run.devices_for("n2")) == (1.0, 0.5)
    assert grid(run={"devices": 0.25}).run.devices_for("n1") == 0.25
    assert spec.run.keep.every_tokens == 10**9
    assert spec.run.evaluations["loss"].memory == 2**34


def test_a_whole_number_where_any_number_is_allowed() -> None:
    assert grid(training={"clip": 1}).training_for("full") == grid(training={"clip": 1.0}).training_for("full")


def test_numbers_with_an_exponent_are_numbers() -> None:
    spec = parse_grid(SMALL + "training: {optimizer: {lr: 1e-3}}\n", source="g", base_folder=Path())
    assert spec.training_for("full") == {"optimizer": {"lr": 1e-3}}


def test_a_process_whose_folder_vanished_still_reads_grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study plans every trial; the folder of its job may be cleared away meanwhile."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    spec = grid_from_mapping(yaml.safe_load(SMALL), source="test", base_folder=tmp_path)
    assert spec.base_folder == tmp_path


class TestFinding:
    """Which file a command's argument means."""

    @pytest.fixture
    def shipped(self, tmp_path: Path) -> Path:
        folder = tmp_path / "shipped"
        folder.mkdir()
        (folder / "quickstart.yaml").write_text(SMALL)
        return folder

    def test_a_shipped_name_and_a_path(self, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        (here / "mine.yaml").write_text(SMALL.replace("small", "mine"))
        (here / "quickstart").mkdir()  # a folder of that name does not hide the shipped grid
        assert load_grid("quickstart", shipped_folder=shipped).name == "small"
        assert load_grid("quickstart", shipped_folder=shipped).base_folder == here
        assert load_grid("mine.yaml", shipped_folder=shipped).base_folder == here
        assert load_grid(here / "mine.yaml", shipped_folder=shipped).name == "mine"

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("quickstrat", "Did you mean quickstart?"),
            ("quickstart.yaml", "without a suffix: quickstart"),
            ("mine", "mine.yaml is here"),
            ("nowhere/grid.yaml", "no folder nowhere"),
            ("unlike", "a shipped grid: quickstart"),
            (".", "not a folder"),
            ("", "a grid file"),
            ("a\0b", "a grid file"),
            ("x" * 5000, "grid"),
        ],
    )
    def test_what_is_not_there(
        self, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.yaml").write_text(SMALL)
        with pytest.raises(BadInput, match="grid") as error:
            load_grid(given, shipped_folder=shipped)
        assert said in str(error.value)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "empty"),
            (b"# only a comment\n", "empty"),
            (b"- a\n- b\n", "a list of 2"),
            (b"just text", "just text"),
            (b"name: caf\xe9\n", "line 1, byte 0xe9"),
            ("name: x".encode("utf-16"), "UTF-8"),
            (b"a: {", "not YAML"),
            (b"x" * 2_000_000, "2000000 bytes"),
            (b"\x00\x01", "not YAML"),
        ],
    )
    def test_what_is_no_grid_file(self, shipped: Path, tmp_path: Path, content: bytes, said: str) -> None:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        with pytest.raises(BadInput, match="bad") as error:
            load_grid(path, shipped_folder=shipped)
        assert said in str(error.value)

    def test_a_byte_order_mark_is_no_mistake(self, shipped: Path, tmp_path: Path) -> None:
        path = tmp_path / "bom.yaml"
        path.write_text(SMALL, encoding="utf-8-sig")
        assert load_grid(path, shipped_folder=shipped).name == "small"
