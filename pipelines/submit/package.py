"""What a job needs of this machine: the grid file, the files that it names by relative paths, and what is only told.

Relative paths are shipped, so that they mean the same on every node; absolute ones must mean the same there already.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gridlaw.pipelines.submit.credentials import STORAGE, TRACKING_URI
from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid

GRID_FILE = "grid.yaml"
SHIP_LIMIT_MIB = 64
"""A package is kept in the memory of the cluster's head."""
_PATH_SETTINGS = ("corpus", "evaluator")
"""Settings of evaluations that may name files or folders."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """files: what is shipped, by its name in the job's folder. required: what must be there already, as sentences."""

    grid_text: str
    files: dict[str, Path] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return len(self.grid_text.encode()) + sum(path.stat().st_size for path in self.files.values())

    def write(self, folder: Path) -> None:
        """Lay it out in an empty folder."""
        (folder / GRID_FILE).write_text(self.grid_text, encoding="utf-8")
        for name, path in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def make_package(spec: GridSpec, grid_text: str, *, limit_mib: float = SHIP_LIMIT_MIB) -> Package:
    """``BadInput`` for relative paths that leave the grid's folder, and for more than ``limit_mib``."""
    base, limit_bytes = spec.base_folder.resolve(), int(limit_mib * 2**20)
    files: dict[str, Path] = {}
    required: list[str] = []
    for name, text in dict.fromkeys(_named(spec)):
        path = Path(text).expanduser()
        if text.startswith("hf:"):
            required.append(f"{text}, from the Hugging Face hub or its cache ({name})")
        elif path.is_absolute():
            here = "" if _matched(str(path)) else ", not on this machine"
            required.append(f"{text} ({name}{here})")
        else:
            found = _files_of(base, text, name)
            files |= found
            size = sum(each.stat().st_size for each in files.values())
            if size > limit_bytes:
                raise BadInput(
                    name,
                    seen=text,
                    allowed=f"relative paths of at most {limit_mib:g} MiB in all, which are shipped "
                    f"(with this one {size / 2**20:,.1f} MiB)",
                    hint="Put the files where every node has them and name them by an absolute path, or raise "
                    "--ship-limit",
                )
    if GRID_FILE in files:
        raise BadInput("data", seen=GRID_FILE, allowed=f"files of other names than {GRID_FILE}")
    return Package(grid_text=grid_text, files=files, required=tuple(required))


def without_passwords(grid_text: str, base_folder: Path) -> str:
    """The file's text as it may be shipped; a job has addresses with a password from its credentials instead."""
    run = parse_grid(grid_text, source="the grid file", base_folder=base_folder).run
    for name, address in (("tracking_uri", run.tracking_uri), ("storage", run.storage)):
        if address is None or redacted(address) == address:
            continue
        if address not in grid_text:
            raise BadInput(
                f"run.{name}",
                seen=redacted(address),
                allowed="an address with a password in one piece, which is then left out of what is shipped",
                hint=f"Put it into {STORAGE if name == 'storage' else TRACKING_URI} instead",
            )
        grid_text = grid_text.replace(address, redacted(address))
    return grid_text


def _named(spec: GridSpec) -> Iterator[tuple[str, str]]:
    """(field, text) of what may be a file, a folder or a dataset."""
    for stage in [None, *(each.name for each in spec.stages or ())]:
        data = spec.data_for(stage)
        tokenizer = data.get("tokenizer")
        if tokenizer not in (None, "bytes"):
            yield "data.tokenizer", str(tokenizer)
        sources = [(f"data.mixture[{index}]", each) for index, each in enumerate(data.get("mixture") or ())]
        sources.append(("data.heldout", data.get("heldout") or {}))
        for name, entry in sources:
            yield from _source(name, entry.get("source"), spec.base_folder)
        source = spec.source_of(stage)
        if source is not None and source.folder is not None:
            yield f"stages: {stage}: from", source.folder
    for evaluation in spec.evaluate:
        for key in _PATH_SETTINGS:
            value = evaluation.settings.get(key)
            if isinstance(value, str) and (key != "evaluator" or value.startswith((".", "/", "~"))):
                yield from _source(f"evaluate.{evaluation.name}.{key}", value, spec.base_folder)


def _source(name: str, text: str | None, base: Path) -> Iterator[tuple[str, str]]:
    if text is None or text.startswith(("embedded:", "generate:")):
        return
    folder = text.removeprefix("hf:")
    yield name, folder if text.startswith("hf:") and (base / folder).is_dir() else text


def _files_of(base: Path, text: str, name: str) -> dict[str, Path]:
    """The files that a relative path or glob means, by their names below ``base``; none if there are none."""
    found: dict[str, Path] = {}
    for match in _matched(str(base / text)):
        for path in sorted(match.rglob("*")) if match.is_dir() else [match]:
            if not path.is_file():
                continue
            try:
                # Not resolved: a link is shipped under its own name with what it points to.
                found[Path(_plain(path)).relative_to(base).as_posix()] = path
            except ValueError:
                raise BadInput(
                    name,
                    seen=text,
                    allowed="a relative path below the grid file's folder, or an absolute one",
                    hint="Only what lies below the grid file can be shipped",
                ) from None
    return found


def _matched(whole: str) -> list[Path]:
    return [Path(whole)] if Path(whole).exists() else sorted(Path(each) for each in glob.glob(whole, recursive=True))


def _plain(path: Path) -> str:
    """Without ``..``, links left alone."""
    import os.path

    return os.path.normpath(path)
