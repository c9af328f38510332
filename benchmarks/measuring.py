"""What benchmarks share: exports in temporary folders, the time and memory of commands, zoo files and options."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import psutil

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Seconds:
    """Wall time of a command from start to exit, and CPU time of all its processes."""

    wall: float
    cpu: float


def run(command: list[Any], environment: Mapping[str, str], log: Path, folder: Path | None = None) -> Seconds:
    """Runs a command in a folder. If it fails, prints its output and exits."""
    with log.open("wb") as output:
        start, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
        done = subprocess.run(
            [*map(str, command)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
        wall, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{log.read_text(errors='replace')}\nexit code {done.returncode}: {' '.join(map(str, command))}")
    return Seconds(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def output_of(command: list[Any], **settings: Any) -> str:
    """Standard output of a command. If it fails, prints all of its output and exits."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **settings)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def exporting(zoo: Path | str, folder: Path, *options: str) -> list[Any]:
    """The command that lowers a zoo with store and results in a folder."""
    return [SCRIPTS / "pteforge", "export", zoo, "--store", folder / "store", "--out", folder / "out", *options]


def export(zoo: Path, folder: Path, *options: str) -> str:
    """Lowers a zoo from nothing, in a folder; returns standard output, or exits as `output_of`."""
    return output_of(exporting(zoo, folder, *options), env=os.environ | {"PTEFORGE_CACHE": str(folder / "cache")})


def write_zoo(folder: Path, models: Mapping[str, Any], **fields: Any) -> Path:
    """Writes a zoo file, whose models may have builders from this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "zoo.yaml"
    zoo = {"version": 1, "python_path": [str(HERE)], "models": models, **fields}
    file.write_text(json.dumps(zoo, indent=1), encoding="utf-8")
    return file


def environment_of(folder: Path, prefect_home: str = "prepared") -> dict[str, str]:
    """An environment without caches of earlier runs and without a Prefect server."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PTEFORGE_CACHE"] = str(folder / "cache")
    if prefect_home != "user":
        environment["PREFECT_HOME"] = str(folder / "prefect")
    return environment


def prepare_database(folder: Path, environment: Mapping[str, str]) -> Seconds:
    """Creates Prefect's database, once per machine."""
    command = [SCRIPTS / "prefect", "server", "database", "upgrade", "--yes"]
    return run(command, environment, folder / "database.log")


def read_libraries(environment: Mapping[str, str], folder: Path, *names: str) -> None:
    """Reads every library from disk once, so that no side of a comparison pays for the other."""
    run([sys.executable, "-c", f"import executorch.exir, {', '.join(names)}"], environment, folder / "import.log")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder, which is removed also if this process is terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory(prefix="pteforge-bench-") as folder:
        yield Path(folder)


@contextmanager
def prepared_folder() -> Iterator[tuple[Path, dict[str, str]]]:
    """A temporary folder, and an environment with a Prefect home in it that has its database already."""
    with temporary_folder() as folder:
        environment = environment_of(folder)
        prepare_database(folder, environment)
        yield folder, environment


def peak_of(process: psutil.Popen) -> int:
    """Peak of a process's own resident bytes, when it has ended."""
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, process.memory_info().rss)
            process.wait(0.05)
        except (psutil.TimeoutExpired, psutil.NoSuchProcess):
            continue
    return peak


def size_of(files: Iterable[Path]) -> int:
    """Bytes of the regular files, each inode counted once."""
    stats = (file.lstat() for file in files if file.is_file() and not file.is_symlink())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


def files_in(folder: Path) -> dict[Path, bytes]:
    """The `.pte` files below a folder, by relative path."""
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.pte")}


def arguments_of(documentation: str | None, *, repeat: str = "", times: int = 3) -> argparse.ArgumentParser:
    """A parser for a benchmark that prints a table or, with ``--json``, one document.

    `repeat` is what ``--repeat`` counts, if there is such an option.
    """
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    if repeat:
        parser.add_argument("--repeat", type=int, default=times, metavar="N", help=f"{repeat} (%(default)s)")
    return parser


def markdown(rows: Iterable[Iterable[str]]) -> str:
    """A table, whose first row is its head; all columns but the first hold numbers."""
    head, *rest = ([*row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---", *("---:" for _ in head[1:])], *rest))
