"""Lowers zoos of generated models of several sizes, then each again after a change, and compares what that costs.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from cold import environment_of, prepare_database, run
from generated import write_zoo

SIZES = (10, 100)


@dataclass(frozen=True)
class Run:
    """One run of `pteforge export`: what had changed before, its time, and peak resident bytes of its own process."""

    models: int
    change: str
    wall: float
    cpu: float
    memory: int


def changes(models: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """What changes from run to run: its name, how many models there are, and other arguments of `write_zoo`."""
    yield "nothing cached", models, {}
    yield "nothing changed", models, {}
    yield "nothing changed, again", models, {}
    yield "one model wider", models, {"model0000": {"width": 4}}
    yield "new weights of one model", models, {"model0000": {"width": 4, "seed": 1}}
    yield "one model more", models + 1, {"model0000": {"width": 4, "seed": 1}}
    yield "an option of one recipe", models + 1, {"model0000": {"width": 4, "seed": 1}, "alignment": 256}


def measure(models: int, folder: Path, environment: dict[str, str], store: str | None) -> Iterator[Run]:
    """The runs of one size, in new folders under `folder`."""
    for change, count, options in changes(models):
        zoo = write_zoo(folder / "zoo", count, **options)
        command = [sys.executable, __file__, "--export", zoo, store or folder / "store", folder / "out"]
        seconds = run([*command, folder / "memory"], environment, folder / "log")
        yield Run(models, change, seconds.wall, seconds.cpu, int((folder / "memory").read_text()))


def export(zoo: str, store: str, out: str, memory: str) -> int:
    """Runs the command, and writes the peak of its own process's resident bytes to a file."""
    command = [Path(sys.executable).with_name("pteforge"), "export", zoo, "--store", store, "--out", out]
    process, peak = psutil.Popen(command), 0
    while process.poll() is None:
        try:
            peak = max(peak, process.memory_info().rss)
            process.wait(0.05)
        except (psutil.TimeoutExpired, psutil.NoSuchProcess):
            continue
    Path(memory).write_text(str(peak))
    return int(process.returncode)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=int, default=SIZES, help="how many models (10 and 100)")
    parser.add_argument("--store", help="folder or URL of an empty store; a temporary folder by default")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # removes the temporary folder then too
    runs = []
    with tempfile.TemporaryDirectory(prefix="pteforge-bench-") as temporary:
        folder = Path(temporary)
        environment = environment_of(folder, "prepared")
        prepare_database(folder, environment)
        for models in arguments.models:
            store = arguments.store and f"{arguments.store.rstrip('/')}/{models}"
            (folder / str(models)).mkdir()
            for measured in measure(models, folder / str(models), environment, store):
                runs.append(measured)
                if not arguments.json:
                    show(measured, first=len(runs) == 1)
            shutil.rmtree(folder / str(models))
    if arguments.json:
        print(json.dumps([asdict(measured) for measured in runs], indent=2))


def show(measured: Run, *, first: bool) -> None:
    """Prints a run as a row of the table."""
    if first:
        print(f"{'models':>6}  {'':<26}{'wall s':>8}{'CPU s':>8}{'CPU s/model':>13}{'driver MiB':>12}")
    each = measured.cpu / measured.models
    figures = f"{measured.wall:>8.1f}{measured.cpu:>8.1f}{each:>13.3f}{measured.memory / 2**20:>12.0f}"
    print(f"{measured.models:>6}  {measured.change:<26}{figures}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--export"]:
        sys.exit(export(*sys.argv[2:]))
    main()
