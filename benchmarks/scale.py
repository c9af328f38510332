"""Lowers generated zoos of several sizes, then each again after a change, and compares the cost; see README.md."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import SCRIPTS, arguments_of, peak_of, prepared_folder, run
from networks import write_generated

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
    """What changes from run to run: its name, how many models there are, and other arguments of `write_generated`."""
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
        zoo = write_generated(folder / "zoo", count, **options)
        command = [sys.executable, __file__, "--export", zoo, store or folder / "store", folder / "out"]
        seconds = run([*command, folder / "memory"], environment, folder / "log")
        yield Run(models, change, seconds.wall, seconds.cpu, int((folder / "memory").read_text()))


def export(zoo: str, store: str, out: str, memory: str) -> int:
    """Runs the command, and writes the peak of its own process's resident bytes to a file."""
    command = [SCRIPTS / "pteforge", "export", zoo, "--store", store, "--out", out]
    process = psutil.Popen(command)
    Path(memory).write_text(str(peak_of(process)))
    return int(process.returncode)


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("models", nargs="*", type=int, default=SIZES, help="how many models (10 and 100)")
    parser.add_argument("--store", help="folder or URL of an empty store; a temporary folder by default")
    arguments = parser.parse_args()
    runs = []
    with prepared_folder() as (folder, environment):
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
