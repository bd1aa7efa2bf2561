"""``make bench``: every benchmark of this folder, one after the other, each printing its own Markdown.

Figures, never checks: nothing here fails for being slow. Give names to run some: ``run.py laws recurrent``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
    failed = []
    for path in sorted(FOLDER.glob("bench_*.py")):
        name = path.stem.removeprefix("bench_")
        if names and name not in names:
            continue
        print(f"\n## {name}\n", flush=True)
        if subprocess.run([sys.executable, str(path)], env=environment, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"these ended with an error: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
