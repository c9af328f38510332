"""Cold exports of the starter zoo by two revisions of pteforge, in turn: wall and CPU time, and equality of files.

    python benchmarks/revisions.py BASE [OTHER] --pairs 5

BASE and OTHER (without it, the commit that is checked out) are git revisions. Each export starts with an empty store
and a Prefect home that has its database already. Run it on an idle machine, and quote the ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = "import sys; from pteforge.flows.cli import main; sys.argv[0] = 'pteforge'; main()"


def main() -> None:
    """Runs the pairs and prints a line each, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("other", nargs="?", default="HEAD")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--zoo", default="examples/zoo/starter.yaml")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        checkout(options.base, Path(name) / "base"),
        checkout(options.other, Path(name) / "other"),
    ):
        folder = Path(name)
        for revision in ("base", "other"):
            export(folder / revision, folder / "warm-up", options.zoo)  # compiles Python, makes Prefect's database
            shutil.rmtree(folder / "warm-up")
        walls, cpus = [], []
        for number in range(options.pairs):
            figures = {}
            order = ("base", "other") if number % 2 else ("other", "base")
            for revision in order:
                figures[revision] = export(folder / revision, folder / f"{number}-{revision}", options.zoo)
            equal = files(folder / f"{number}-base") == files(folder / f"{number}-other")
            (wall, cpu), (other_wall, other_cpu) = figures["base"], figures["other"]
            walls.append(other_wall / wall)
            cpus.append(other_cpu / cpu)
            print(
                f"pair {number + 1}: wall {other_wall:.1f} / {wall:.1f} s = {walls[-1]:.2f}, "
                f"CPU {other_cpu:.1f} / {cpu:.1f} s = {cpus[-1]:.2f}, files {'equal' if equal else 'DIFFER'}",
                flush=True,
            )
            for revision in order:
                shutil.rmtree(folder / f"{number}-{revision}")
        print(f"median of ratios: wall {statistics.median(walls):.2f}, CPU {statistics.median(cpus):.2f}")


@contextmanager
def checkout(revision: str, folder: Path) -> Iterator[None]:
    """A revision's tree as the package `pteforge` in a folder, for as long as the context is open."""
    tree = folder / "pteforge"
    git("worktree", "add", "--detach", str(tree), revision)
    try:
        yield
    finally:
        git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    """Runs git in this repository."""
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)


def export(revision: Path, folder: Path, zoo: str) -> tuple[float, float]:
    """Wall and CPU seconds of one cold export, with everything that it makes in a folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(revision),
        "PTEFORGE_CACHE": str(folder / "cache"),
        "PTEFORGE_STORE": str(folder / "store"),
        "PREFECT_HOME": str(revision / "prefect"),
    }
    command = [sys.executable, "-c", PROGRAM, "export", zoo, "--out", str(folder / "out")]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, cwd=revision / "pteforge", env=environment, capture_output=True, text=True, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{revision.name}: {done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def files(folder: Path) -> dict[str, bytes]:
    """The `.pte` files that were made, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in (folder / "out").rglob("*.pte")}


if __name__ == "__main__":
    main()
