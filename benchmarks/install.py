"""Size and time of an installation: torch and pteforge against torch and ExecuTorch alone, in fresh environments.

Builds the wheel of this clone. Each side is installed once without being measured, so that all wheels are in pip's
cache; afterwards the sides take turns. Size is that of all files of the virtual environment, with the bytecode that pip
compiles. Exits with 1 if pteforge exceeds `LIMIT_BYTES` or `LIMIT_SECONDS`, and then names the largest packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measuring import HERE, output_of, run

TORCH, EXECUTORCH = "torch==2.13.0", "executorch==1.5.1"

LIMIT_BYTES = 1_600_000_000
LIMIT_SECONDS = 90.0


@dataclass(frozen=True)
class Installed:
    """A fresh virtual environment with packages."""

    seconds: float
    size: int
    packages: dict[str, int]  # bytes of each


def install(folder: Path, packages: list[str | Path]) -> Installed:
    """Installs packages into a new virtual environment, and removes it."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        output_of([sys.executable, "-m", "venv", room])
        took = run([f"{room}/bin/pip", "install", *packages], os.environ, folder / "pip.log")
        size = sum(file.lstat().st_size for file in Path(room).rglob("*") if file.is_file() and not file.is_symlink())
        return Installed(took.wall, size, json.loads(output_of([f"{room}/bin/python", "-I", "-c", _SIZES])))


_SIZES = """
import json
from importlib.metadata import distributions
print(json.dumps({each.name: sum(file.locate().stat().st_size for file in each.files or () if file.locate().exists())
                  for each in distributions()}))
"""


def main() -> int:
    """Prints a table, or JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="measured installations of each side (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pteforge-install-") as room:
        folder = Path(room)
        output_of([HERE.parent / "scripts" / "build", folder / "dist", "--untried"])
        (wheel,) = (folder / "dist").glob("*.whl")
        sides = {"torch executorch": [TORCH, EXECUTORCH], "torch pteforge": [TORCH, wheel]}
        measured: dict[str, list[Installed]] = {side: [] for side in sides}
        for number in range(arguments.repeat + 1):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                found = install(folder, sides[side])
                measured[side] += [found] if number else []
    seconds = {side: median(one.seconds for one in runs) for side, runs in measured.items()}
    last = {side: runs[-1] for side, runs in measured.items()}
    (base, ours) = sides
    if arguments.json:
        print(json.dumps({side: {"seconds": seconds[side], **vars(last[side])} for side in sides}, indent=1))
    else:
        for side in sides:
            size, count = last[side].size, len(last[side].packages)
            print(
                f"{side:18}{count:5} packages  {size / 1e9:.2f} GB  {size / last[base].size:.2f}"
                f"  {seconds[side]:6.1f} s  {seconds[side] / seconds[base]:.2f}"
            )
    if last[ours].size <= LIMIT_BYTES and seconds[ours] <= LIMIT_SECONDS:
        return 0
    added = {name: size for name, size in last[ours].packages.items() if name not in last[base].packages}
    largest = sorted(added, key=added.__getitem__, reverse=True)[:8]
    largest_text = ", ".join(f"{name} {added[name] / 1e6:.0f} MB" for name in largest)
    print(f"more than {LIMIT_BYTES / 1e9} GB or {LIMIT_SECONDS:.0f} s; the largest of what is added: {largest_text}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
