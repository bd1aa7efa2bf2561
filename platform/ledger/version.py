"""Which code ran: recorded on every run, warned about when it changes, never part of an identity."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class CodeVersion:
    """package: version of gridlaw. commit: full git hash, "" outside a checkout. dirty: tracked files were changed."""

    package: str
    commit: str = ""
    dirty: bool = False

    @staticmethod
    def of_tags(tags: Mapping[str, str]) -> CodeVersion:
        """Of the code that made a run, from its tags."""
        return CodeVersion(
            package=tags.get("version", "unknown"), commit=tags.get("commit", ""), dirty=tags.get("dirty") == "true"
        )

    def tags(self) -> dict[str, str]:
        """As tags of a run; MLflow's own git tag makes its page show the commit."""
        tags = {"version": self.package}
        if self.commit:
            tags |= {"commit": self.commit, "dirty": str(self.dirty).lower(), "mlflow.source.git.commit": self.commit}
        return tags

    def __str__(self) -> str:
        if not self.commit:
            return self.package
        return f"{self.package} ({self.commit[:10]}{', changed' if self.dirty else ''})"


@functools.cache
def code_version() -> CodeVersion:
    """The version of the code that is running; looked up once per process."""
    try:
        package = metadata.version("gridlaw")
    except metadata.PackageNotFoundError:
        package = "unknown"
    folder = Path(__file__).resolve().parent
    commit = _git(folder, "rev-parse", "HEAD")
    # A package installed inside some other checkout must not take that project's commit for its own.
    if not commit or not _git(folder, "ls-files", "--error-unmatch", Path(__file__).name):
        return CodeVersion(package=package)
    return CodeVersion(package=package, commit=commit, dirty=bool(_git(folder, "status", "--porcelain", "-uno")))


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
