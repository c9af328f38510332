"""Compares seconds and bytes of a zoo's lowering by pteforge and by its peer, side by side; see README.md."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import measuring
from peer import ZOOS

SIDES = {"peer": "peer", "cold": "nothing cached", "warm": "everything cached"}


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


def measure_seconds(
    zoo: str, folder: Path, environment: dict[str, str], *, peer_first: bool
) -> dict[str, measuring.Seconds]:
    """One run of each of the `SIDES`, in new folders under `folder`."""
    ours = measuring.exporting(ZOOS[zoo].file, folder)
    commands = {"cold": ours, "warm": ours, "peer": [sys.executable, measuring.HERE / "peer.py", zoo, folder / "peer"]}
    order = ("peer", "cold", "warm") if peer_first else ("cold", "warm", "peer")
    seconds = {side: measuring.run(commands[side], environment, folder / f"{side}.log") for side in order}
    for side, names in (("peer", ZOOS[zoo].recipes), ("out", ZOOS[zoo].files)):
        expected = {Path(model) / f"{name}.pte" for model in ZOOS[zoo].builders for name in names}
        files = {file.relative_to(folder / side) for file in (folder / side).rglob("*.pte")}
        if files != expected:
            sys.exit(f"{side} should have {sorted(map(str, expected))} and has {sorted(map(str, files))}")
    return seconds


def measure_bytes(zoo: str, folder: Path, environment: dict[str, str]) -> Bytes:
    """Sizes, after `measure_seconds` has run in `folder`."""
    apart = folder / "apart"
    command = [sys.executable, measuring.HERE / "peer.py", zoo, apart, "--apart"]
    measuring.run(command, environment, folder / "apart.log")
    return Bytes(
        aten=measuring.size_of(apart.rglob("*.aten.pt2")),
        edge=measuring.size_of(apart.rglob("*.edge.pt2")),
        pte=measuring.size_of((folder / "peer").rglob("*.pte")),
        store=measuring.size_of((folder / "store").rglob("*")),
    )


def show(title: str, medians: dict[str, measuring.Seconds], size: Bytes, database: measuring.Seconds | None) -> None:
    """Prints the figures as a table."""
    print(title)
    print(f"{'':<28}{'wall s':>10}{'ratio':>8}{'CPU s':>10}{'ratio':>8}")
    for side, name in SIDES.items():
        seconds, peer = medians[side], medians["peer"]
        wall, cpu = seconds.wall / peer.wall, seconds.cpu / peer.cpu
        print(f"{name:<28}{seconds.wall:>10.1f}{wall:>8.2f}{seconds.cpu:>10.1f}{cpu:>8.2f}")
    if database:
        print(f"{'Prefect database, once':<28}{database.wall:>10.1f}{'':>8}{database.cpu:>10.1f}")
    print(f"{'':<28}{'bytes':>10}{'ratio':>8}")
    print(f"{'stage outputs, separately':<28}{size.apart:>10}{1:>8.2f}")
    print(f"{'store':<28}{size.store:>10}{size.store / size.apart:>8.2f}")


def main() -> None:
    """Measures and prints."""
    parser = measuring.arguments_of(__doc__, repeat="runs of each side; medians count")
    parser.add_argument("--zoo", choices=list(ZOOS), default="starter", help="which one (%(default)s)")
    parser.add_argument(
        "--prefect-home",
        choices=("prepared", "fresh", "user"),
        default="prepared",
        help="prepared: create Prefect's database before the runs; fresh: in each run; user: use this account's "
        "(%(default)s)",
    )
    arguments = parser.parse_args()
    machine: dict[str, Any] = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    machine |= {name: version(name) for name in ("torch", "executorch", "prefect")}
    runs = []
    with measuring.temporary_folder() as folder:
        environment = measuring.environment_of(folder, arguments.prefect_home)
        measuring.read_libraries(environment, folder, "prefect")
        database = measuring.prepare_database(folder, environment) if arguments.prefect_home == "prepared" else None
        for number in range(arguments.repeat):
            for name in ("store", "out", "peer", "cache", *(["prefect"] if arguments.prefect_home == "fresh" else [])):
                shutil.rmtree(folder / name, ignore_errors=True)
            runs.append(measure_seconds(arguments.zoo, folder, environment, peer_first=number % 2 == 0))
        size = measure_bytes(arguments.zoo, folder, environment)
    medians = {
        side: measuring.Seconds(median(each[side].wall for each in runs), median(each[side].cpu for each in runs))
        for side in SIDES
    }
    if not arguments.json:
        files = len(ZOOS[arguments.zoo].builders) * len(ZOOS[arguments.zoo].files)
        title = f"{arguments.zoo} zoo, {files} files, {machine['cpus']} CPUs, medians of {len(runs)} runs"
        return show(title, medians, size, database)
    seconds = {side: asdict(middle) for side, middle in medians.items()}
    figures = {
        "machine": machine | {"prefect_home": arguments.prefect_home},
        "seconds": seconds | {"database": database and asdict(database)},
        "runs": [{side: asdict(each[side]) for side in SIDES} for each in runs],
        "bytes": asdict(size),
        "ratios": {
            "cold_to_peer": medians["cold"].wall / medians["peer"].wall,
            "warm_to_peer": medians["warm"].wall / medians["peer"].wall,
            "store_to_apart": size.store / size.apart,
        },
    }
    return print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
