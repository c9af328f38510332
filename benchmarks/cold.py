"""Lowers a zoo with pteforge and with its peer, side by side, and compares seconds and bytes.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Literal, get_args

import psutil
from zoos import ZOOS

HERE = Path(__file__).parent

Home = Literal["prepared", "fresh", "user"]


@dataclass(frozen=True)
class Seconds:
    """Wall time of a command from start to exit, and CPU time of all its processes."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Run:
    """One run of each command."""

    peer: Seconds
    cold: Seconds
    warm: Seconds


@dataclass(frozen=True)
class Bytes:
    """Sizes on disk: of separately saved programs and files (`aten`, `edge`, `pte`), and of pteforge's store."""

    aten: int
    edge: int
    pte: int
    store: int

    @property
    def apart(self) -> int:
        """All stage outputs, saved separately."""
        return self.aten + self.edge + self.pte


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that were measured."""

    cpus: int
    python: str
    torch: str
    executorch: str
    prefect: str
    prefect_home: Home


def run(command: list[str | Path], environment: dict[str, str], log: Path) -> Seconds:
    """Runs a command. If it fails, prints its output and exits."""
    with log.open("wb") as output:
        start, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
        )
        wall, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{log.read_text(errors='replace')}\nexit code {done.returncode}: {' '.join(map(str, command))}")
    return Seconds(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def environment_of(folder: Path, prefect_home: Home) -> dict[str, str]:
    """An environment without caches of earlier runs and without a Prefect server."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PTEFORGE_CACHE"] = str(folder / "cache")
    if prefect_home != "user":
        environment["PREFECT_HOME"] = str(folder / "prefect")
    return environment


def prepare_database(folder: Path, environment: dict[str, str]) -> Seconds:
    """Creates Prefect's database, once per machine."""
    prefect = Path(sys.executable).with_name("prefect")
    return run([prefect, "server", "database", "upgrade", "--yes"], environment, folder / "database.log")


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
        environment = environment_of(folder, "prepared")
        prepare_database(folder, environment)
        yield folder, environment


def export(zoo: Path, folder: Path, *options: str) -> str:
    """Lowers a zoo from nothing, in a folder; returns standard output. If that fails, prints all output and exits."""
    pteforge = Path(sys.executable).with_name("pteforge")
    done = subprocess.run(
        [pteforge, "export", zoo, "--store", folder / "store", "--out", folder / "out", *options],
        env=os.environ | {"PTEFORGE_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\n{zoo.name} could not be lowered as it should be")
    return done.stdout


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


def arguments_of(documentation: str | None) -> argparse.ArgumentParser:
    """A parser for a benchmark that prints a table or, with ``--json``, one document."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def measure_seconds(zoo: str, folder: Path, environment: dict[str, str], *, peer_first: bool) -> Run:
    """One run of each side, in new folders under `folder`."""
    pteforge = Path(sys.executable).with_name("pteforge")
    ours = [pteforge, "export", ZOOS[zoo].file, "--store", folder / "store", "--out", folder / "ours"]

    def peer() -> Seconds:
        return run([sys.executable, HERE / "peer.py", zoo, folder / "peer"], environment, folder / "peer.log")

    peer_seconds = peer() if peer_first else None
    cold = run(ours, environment, folder / "cold.log")
    warm = run(ours, environment, folder / "warm.log")
    seconds = Run(peer_seconds or peer(), cold, warm)
    check_same_files(zoo, folder / "peer", folder / "ours")
    return seconds


def check_same_files(zoo: str, peer: Path, ours: Path) -> None:
    """Exits unless both sides made every file of the zoo, and nothing else."""
    for side, names in ((peer, ZOOS[zoo].recipes), (ours, ZOOS[zoo].files)):
        expected = {Path(model) / f"{name}.pte" for model in ZOOS[zoo].builders for name in names}
        made = {file.relative_to(side) for file in side.rglob("*.pte")}
        if made != expected:
            sys.exit(f"{side} should have {sorted(map(str, expected))} and has {sorted(map(str, made))}")


def size_of(files: Iterable[Path]) -> int:
    """Bytes of the regular files, each inode counted once."""
    stats = (file.lstat() for file in files if file.is_file() and not file.is_symlink())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


def measure_bytes(zoo: str, folder: Path, environment: dict[str, str]) -> Bytes:
    """Sizes, after `measure_seconds` has run in `folder`."""
    apart = folder / "apart"
    run([sys.executable, HERE / "apart.py", zoo, apart], environment, folder / "apart.log")
    return Bytes(
        aten=size_of(apart.rglob("*.aten.pt2")),
        edge=size_of(apart.rglob("*.edge.pt2")),
        pte=size_of((folder / "peer").rglob("*.pte")),
        store=size_of((folder / "store").rglob("*")),
    )


def middle(runs: list[Run]) -> Run:
    """The median of each figure."""

    def of(side: str) -> Seconds:
        seconds = [getattr(run, side) for run in runs]
        return Seconds(median(s.wall for s in seconds), median(s.cpu for s in seconds))

    return Run(of("peer"), of("cold"), of("warm"))


def show(zoo: str, runs: int, medians: Run, size: Bytes, machine: Machine, database: Seconds | None) -> None:
    """Prints the figures as a table."""
    files = len(ZOOS[zoo].builders) * len(ZOOS[zoo].files)
    print(f"{zoo} zoo, {files} files, {machine.cpus} CPUs, medians of {runs} runs")
    print(f"{'':<28}{'wall s':>10}{'ratio':>8}{'CPU s':>10}{'ratio':>8}")
    for name, seconds in (
        ("peer", medians.peer),
        ("nothing cached", medians.cold),
        ("everything cached", medians.warm),
    ):
        wall, cpu = seconds.wall / medians.peer.wall, seconds.cpu / medians.peer.cpu
        print(f"{name:<28}{seconds.wall:>10.1f}{wall:>8.2f}{seconds.cpu:>10.1f}{cpu:>8.2f}")
    if database:
        print(f"{'Prefect database, once':<28}{database.wall:>10.1f}{'':>8}{database.cpu:>10.1f}")
    print(f"{'':<28}{'bytes':>10}{'ratio':>8}")
    print(f"{'stage outputs, separately':<28}{size.apart:>10}{1:>8.2f}")
    print(f"{'store':<28}{size.store:>10}{size.store / size.apart:>8.2f}")


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("--zoo", choices=list(ZOOS), default="starter", help="which one (%(default)s)")
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="runs of each side; medians count (%(default)s)"
    )
    parser.add_argument(
        "--prefect-home",
        choices=get_args(Home),
        default="prepared",
        help="prepared: create Prefect's database before the runs; fresh: in each run; user: use this account's "
        "(%(default)s)",
    )
    arguments = parser.parse_args()
    machine = Machine(
        cpus=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        torch=version("torch"),
        executorch=version("executorch"),
        prefect=version("prefect"),
        prefect_home=arguments.prefect_home,
    )
    runs = []
    with temporary_folder() as folder:
        environment = environment_of(folder, arguments.prefect_home)
        # Read every library from disk once, so that neither side pays for the other.
        run([sys.executable, "-c", "import executorch.exir, prefect"], environment, folder / "import.log")
        database = prepare_database(folder, environment) if arguments.prefect_home == "prepared" else None
        for number in range(arguments.repeat):
            for made in ("store", "ours", "peer", "cache", *(["prefect"] if arguments.prefect_home == "fresh" else [])):
                shutil.rmtree(folder / made, ignore_errors=True)
            runs.append(measure_seconds(arguments.zoo, folder, environment, peer_first=number % 2 == 0))
        size = measure_bytes(arguments.zoo, folder, environment)
    medians = middle(runs)
    if not arguments.json:
        return show(arguments.zoo, len(runs), medians, size, machine, database)
    ratios = {
        "cold_to_peer": medians.cold.wall / medians.peer.wall,
        "warm_to_peer": medians.warm.wall / medians.peer.wall,
        "store_to_apart": size.store / size.apart,
    }
    figures = {
        "seconds": asdict(medians) | {"database": database and asdict(database)},
        "runs": [asdict(run) for run in runs],
        "bytes": asdict(size),
        "ratios": ratios,
    }
    return print(json.dumps({"machine": asdict(machine), **figures}, indent=2))


if __name__ == "__main__":
    main()
