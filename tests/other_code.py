"""Another version of this code, and another interpreter, for tests: copies that processes of their own import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class OtherCode:
    """A copy of the code in a git repository of its own. ``path`` goes in front of PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "src"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in ("platform", "modules", "pipelines", "src"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        self._git("init", "-q")
        self._git("add", "-A")
        author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        self._git(*author, "commit", "-q", "--no-gpg-sign", "-m", "another version")
        self.commit = self._git("rev-parse", "HEAD")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that stands once in a file."""
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new))

    def install_as(self, version: str) -> None:
        """What ``pip install`` of this version leaves behind."""
        info = self.path / f"gridlaw-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gridlaw\nVersion: {version}\n")

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()


def other_interpreter(folder: Path) -> dict[str, str]:
    """The environment under which Python runs on a standard library that differs from this one in a line."""
    library = Path(sysconfig.get_paths()["stdlib"])
    copy = folder / "lib" / library.name
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "__pycache__")
    shutil.copytree(library, copy, symlinks=True, copy_function=_link, ignore=ignored)
    changed = copy / "this.py"
    text = changed.read_text()
    changed.unlink()  # its other name must not change
    changed.write_text(text + "# another version\n")
    packages = [path for path in (os.environ.get("PYTHONPATH"), sysconfig.get_paths()["purelib"]) if path]
    return {"PYTHONHOME": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *packages])}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without hard links
        shutil.copy2(source, target)
