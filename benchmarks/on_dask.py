"""Lowers a zoo with nothing cached, with this machine's own processes and on a Dask cluster, and compares seconds.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

from cold import Seconds, arguments_of, prepared_folder, run
from generated import write_zoo

SIDES: dict[str, list[str]] = {"local": [], "dask": ["--on", "dask", "--set", "run.workers=2"]}


def measure(zoo: Path, folder: Path, environment: dict[str, str], side: str) -> Seconds:
    """One run with a store, a cache and an output folder of its own under `folder`."""
    folder.mkdir(parents=True)
    pteforge = Path(sys.executable).with_name("pteforge")
    command = [pteforge, "export", zoo, "--store", folder / "store", "--out", folder / "out", *SIDES[side]]
    return run(command, environment | {"PTEFORGE_CACHE": str(folder / "cache")}, folder / "log")


def check_same_files(pair: Path) -> None:
    """Exits unless both sides made the same files, byte for byte, and at least one."""
    local, dask = (
        {file.relative_to(out): file.read_bytes() for file in out.rglob("*.pte")}
        for out in (pair / side / "out" for side in SIDES)
    )
    if not local or local != dask:
        sys.exit(f"the files differ: local made {sorted(map(str, local))}, dask {sorted(map(str, dask))}")


def measure_pairs(zoo: Path | None, models: int, count: int) -> list[dict[str, Seconds]]:
    """So many pairs of runs, whose sides take turns in going first, of a zoo or of so many generated models."""
    pairs = []
    with prepared_folder() as (folder, environment):
        zoo = zoo or write_zoo(folder / "zoo", models)
        # Read every library from disk once, so that neither side pays for the other.
        libraries = "import distributed, executorch.exir, prefect_dask"
        run([sys.executable, "-c", libraries], environment, folder / "import.log")
        for number in range(count):
            pair = folder / str(number)
            order = list(SIDES) if number % 2 == 0 else list(reversed(SIDES))
            pairs.append({side: measure(zoo, pair / side, environment, side) for side in order})
            check_same_files(pair)
    return pairs


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("zoo", nargs="?", type=Path, help="a zoo file; by default, models are generated")
    parser.add_argument("--models", type=int, default=20, metavar="N", help="how many are generated (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="pairs of runs (%(default)s)")
    arguments = parser.parse_args()
    pairs = measure_pairs(arguments.zoo and arguments.zoo.resolve(), arguments.models, arguments.repeat)
    ratio = median(pair["dask"].wall / pair["local"].wall for pair in pairs)
    if arguments.json:
        runs = [{side: asdict(seconds) for side, seconds in pair.items()} for pair in pairs]
        return print(json.dumps({"runs": runs, "dask_to_local": ratio}, indent=2))
    print(f"{'':<8}{'wall s':>10}{'CPU s':>10}")
    for side in SIDES:
        wall, cpu = (median(getattr(pair[side], figure) for pair in pairs) for figure in ("wall", "cpu"))
        print(f"{side:<8}{wall:>10.1f}{cpu:>10.1f}")
    return print(f"dask to local, median of {len(pairs)} pairs: {ratio:.2f}")


if __name__ == "__main__":
    main()
