"""Start-up of the light commands, as whole processes: median and range of several runs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

GRIDLAW = Path(sys.executable).parent / "gridlaw"
COMMANDS = (["--help"], ["describe", "swa-128", "--scale", "S1"], ["plan", "quickstart"])
RUNS = 7


def main() -> None:
    print("| command | median s | min | max |\n|---|---|---|---|")
    for arguments in COMMANDS:
        seconds = []
        for _ in range(RUNS + 1):
            started = time.perf_counter()
            subprocess.run([str(GRIDLAW), *arguments], check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
        counted = seconds[1:]  # the first fills the file cache
        figures = " | ".join(f"{each(counted):.2f}" for each in (statistics.median, min, max))
        print(f"| gridlaw {' '.join(arguments)} | {figures} |")


if __name__ == "__main__":
    main()
