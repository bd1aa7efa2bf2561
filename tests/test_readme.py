"""What README shows works: commands parse, make targets exist, the grid file loads, files that it names are there."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from gridlaw.pipelines.cli.main import COMMANDS, main
from gridlaw.platform.spec.load import parse_grid

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
LINES = re.findall(r"^(?:\.venv/bin/)?gridlaw (.+)$", README, re.MULTILINE) + re.findall(r"`gridlaw ([^`]+)`", README)


def command(name: str) -> click.Command:
    module, attribute = COMMANDS[name][0].split(":")
    found: click.Command = getattr(importlib.import_module(module), attribute)
    return found


def test_readme_has_commands() -> None:
    assert len(LINES) >= 10


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)
    if name == "--help":
        return
    found = command(name)
    while isinstance(found, click.Group) and arguments:
        found = found.commands[arguments.pop(0)]
    if not arguments:  # named, not shown: `gridlaw evaluate`
        assert found.help
        return
    found.make_context(name, arguments)


@pytest.mark.parametrize(
    "line", [line for line in LINES if re.match(r"(plan quickstart|describe \S+ --scale|fit tests/data)", line)]
)
def test_commands_that_need_nothing_run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line, comments=True))
    assert end.value.code == 0


def test_the_grid_file_loads() -> None:
    (text,) = re.findall(r"```yaml\n(.+?)```", README, re.DOTALL)
    spec = parse_grid(text, source="README.md", base_folder=ROOT)
    assert len(spec.points()) == 36


def test_make_targets_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (ROOT / link).exists(), link


def test_adding_a_mixer_takes_under_fifteen_lines() -> None:
    (snippet,) = re.findall(r"```python\n(class .+?)```", README, re.DOTALL)
    assert len(snippet.splitlines()) < 15
    guide = (ROOT / "docs" / "adding-a-mixer.md").read_text()
    for line in snippet.splitlines():
        if line.startswith("    "):
            assert line in guide
