"""From a grid file, or the name of a shipped one, to a ``GridSpec``. Whatever is wrong with it is a ``BadInput``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.consistency import problems_in
from gridlaw.platform.spec.forms import problems_of
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.problems import BadGrid, Problem, Shown, listed, nearest, shown
from gridlaw.platform.spec.yaml_reader import Document, read_yaml

MAX_FILE_BYTES = 1_000_000
_GRID = "a mapping with name, architectures, scales, budgets and data"
SUFFIXES = (".yaml", ".yml")


def load_grid(path_or_shipped_name: str | Path, *, shipped_folder: Path) -> GridSpec:
    """The grid of a file, or of ``shipped_folder/NAME.yaml`` for a name without folder and suffix.

    Relative paths in a file start at its folder, those in a shipped grid at the working directory. BadInput for what is
    no file, no UTF-8, no YAML, or no grid.
    """
    path = find_grid(path_or_shipped_name, shipped_folder=shipped_folder)
    is_shipped = path.parent == shipped_folder.resolve()
    base_folder = Path.cwd() if is_shipped else path.parent
    return parse_grid(_read_text(path), source=_short(path), base_folder=base_folder)


def shipped_grids(shipped_folder: Path) -> list[str]:
    """Names of the grids that come with gridlaw."""
    return sorted(path.stem for path in shipped_folder.glob("*.yaml"))


def find_grid(path_or_shipped_name: str | Path, *, shipped_folder: Path) -> Path:
    """The file that is meant, as an absolute path. BadInput if there is none; its content is not looked at."""
    given = str(path_or_shipped_name)
    if not given or "\0" in given:
        raise BadInput("grid", seen=given, allowed="a grid file, or the name of a shipped grid")
    path = Path(given).expanduser()
    is_name = isinstance(path_or_shipped_name, str) and len(path.parts) == 1 and path.suffix not in SUFFIXES
    names = shipped_grids(shipped_folder)
    if is_name and given in names:
        return (shipped_folder / f"{given}.yaml").resolve()
    try:
        if path.is_dir():
            found = sorted(each.name for each in path.iterdir() if each.suffix in SUFFIXES)
            hint = f"It holds {listed(found, 5)}" if found else "It holds no YAML file"
            raise BadInput("grid", seen=given, allowed="a grid file, not a folder", hint=hint)
        if path.is_file():
            return path.resolve()
    except OSError as error:
        raise BadInput("grid", seen=given, allowed="a file that can be read", hint=_reason(error)) from None
    raise BadInput("grid", seen=given, allowed=_allowed(names), hint=_missing_hint(path, is_name, names))


def _allowed(names: list[str]) -> str:
    return "a grid file that exists" + (f", or a shipped grid: {listed(names)}" if names else "")


def _missing_hint(path: Path, is_name: bool, names: list[str]) -> str:
    if is_name:
        for suffix in SUFFIXES:
            if path.with_name(path.name + suffix).is_file():
                return f"A file {path.name}{suffix} is here: name it with its suffix"
    if path.stem in names:
        return f"There is no such file; the shipped grid is named without a suffix: {path.stem}"
    meant = nearest(path.stem, names)
    if meant:
        return f"Did you mean {meant}?"
    return f"There is no folder {path.parent}" if not path.parent.exists() else ""


def _read_text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadInput(
                str(path),
                seen=Shown(f"{size} bytes long"),
                allowed=f"a grid file of at most {MAX_FILE_BYTES} bytes",
                hint="Is this a grid file?",
            )
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput("grid", seen=str(path), allowed="a file that can be read", hint=_reason(error)) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(
            str(path),
            seen=Shown(f"no UTF-8 (line {line}, byte {raw[error.start]:#04x})"),
            allowed="text in UTF-8",
            hint="Save the file as UTF-8",
        ) from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _short(path: Path) -> str:
    """The path as a person would write it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def parse_grid(text: str, *, source: str, base_folder: Path) -> GridSpec:
    """The grid of YAML ``text``. source: what messages call it. base_folder: where its relative paths start."""
    document, problems = read_yaml(text)
    if not problems:
        problems = _top_level(document)
    if problems:
        raise BadGrid(source, problems)
    return _checked(document, source, base_folder)


def grid_from_mapping(value: Mapping[str, Any], *, source: str, base_folder: Path) -> GridSpec:
    """The grid of plain values, as a program makes them; lines are unknown then."""
    return _checked(Document(value=dict(value), lines={}), source, base_folder)


def _top_level(document: Document) -> list[Problem]:
    value = document.value
    if value is None:
        return [Problem((), seen=Shown("empty"), allowed=_GRID)]
    if not isinstance(value, dict):
        what = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
        return [
            Problem(
                (),
                seen=Shown(what),
                allowed=_GRID,
                hint="Write one 'key: value' a line, without a leading '-'",
            )
        ]
    return []


def _checked(document: Document, source: str, base_folder: Path) -> GridSpec:
    try:
        spec = GridSpec.model_validate(document.value)
    except ValidationError as error:
        problems = problems_of(error, GridSpec, document.value)
    else:
        spec._base_folder = base_folder
        problems = problems_in(spec)
        if not problems:
            return spec
    for problem in problems:
        problem.line = document.line(problem.path)
    raise BadGrid(source, problems)
