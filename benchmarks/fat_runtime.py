"""Loads and calls fat files and the bare payloads that they choose, side by side in a plain C++ host.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from cold import arguments_of, temporary_folder
from fat_models import FatModel, small, transposed, weights

RUNTIME = Path(__file__).parents[1] / "runtime"

LEVELS = ("none", "parsed", "all")
"""Levels of verification; `parsed` is the default."""


@dataclass(frozen=True)
class Run:
    """Figures of one process that loaded and called a method.

    Attributes:
        load: seconds from opening the file to a callable method.
        call: median seconds of a call.
        loaded: resident bytes of the process after loading.
        called: resident bytes after the calls.
    """

    load: float
    call: float
    loaded: int
    called: int


@dataclass(frozen=True)
class Cost:
    """Cost of a fat file compared with its bare payload: medians over pairs of processes.

    Attributes:
        model: name of the model.
        payload: the payload that runs.
        payload_bytes: size of its bare file.
        bare: medians of the bare payload.
        selecting: seconds added to loading without verification.
        verifying_parsed: seconds added to `selecting` by the default verification.
        verifying_all: seconds added to `selecting` by verifying all weights.
        call: seconds added to a call.
        loaded_ratio: resident bytes after loading with default verification, relative to the bare payload.
        called_ratio: the same after the calls.
        loaded_ratio_all: `loaded_ratio` with all weights verified.
    """

    model: str
    payload: str
    payload_bytes: int
    bare: Run
    selecting: float
    verifying_parsed: float
    verifying_all: float
    call: float
    loaded_ratio: float
    called_ratio: float
    loaded_ratio_all: float


def build_host(folder: Path) -> Path:
    """Builds the delegate and the host that links it; exits if that fails."""
    for command in (
        ["cmake", "-S", RUNTIME, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", "-DNFAT_BUILD_HOST=ON"],
        ["cmake", "--build", folder, "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\nexit code {done.returncode}: {' '.join(map(str, command))}")
    return folder / "nfat_run"


def run(host: Path, file: Path, inputs: Sequence[str], calls: int, level: str = "parsed") -> Run:
    """One process. Its first call is not counted, because some backends finish loading in it."""
    options = ["--bench", "--repeat", str(calls + 1), "--verify", level]
    done = subprocess.run([host, *options, file, "forward", *inputs], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr}\nexit code {done.returncode}: {file}")
    found = json.loads(done.stdout)
    return Run(found["load"], median(found["calls"][1:]), found["resident_loaded"], found["resident_called"])


def measure(host: Path, fat: FatModel, calls: int, repeat: int) -> Cost:
    """Measures one fat file. The sides take turns in going first."""
    pairs = []
    for number in range(repeat + 1):
        sides = [("bare", fat.bare, "parsed"), *((level, fat.file, level) for level in LEVELS)]
        taken = {
            side: run(host, file, fat.inputs, calls, level)
            for side, file, level in (sides if number % 2 else sides[::-1])
        }
        pairs.append(taken)
    pairs = pairs[1:]  # the first one also reads the files and the libraries from disk

    def longer(side: str, than: str) -> float:
        return median(taken[side].load - taken[than].load for taken in pairs)

    bare = [taken["bare"] for taken in pairs]
    return Cost(
        model=fat.model,
        payload=fat.payload,
        payload_bytes=fat.bare.stat().st_size,
        bare=Run(
            median(run.load for run in bare),
            median(run.call for run in bare),
            round(median(run.loaded for run in bare)),
            round(median(run.called for run in bare)),
        ),
        selecting=longer("none", "bare"),
        verifying_parsed=longer("parsed", "none"),
        verifying_all=longer("all", "none"),
        call=median(taken["parsed"].call - taken["bare"].call for taken in pairs),
        loaded_ratio=median(taken["parsed"].loaded / taken["bare"].loaded for taken in pairs),
        called_ratio=median(taken["parsed"].called / taken["bare"].called for taken in pairs),
        loaded_ratio_all=median(taken["all"].loaded / taken["bare"].loaded for taken in pairs),
    )


def show(costs: Sequence[Cost], repeat: int) -> None:
    """Prints the figures as a table."""
    print(f"fat files against the bare payload that they choose, medians of {repeat} pairs of processes")
    columns = [f"{cost.model}, {cost.payload}" for cost in costs]
    print(f"{'':<44}{''.join(f'{column:>20}' for column in columns)}")
    rows = (
        ("payload, MB", [cost.payload_bytes / 1e6 for cost in costs], 3),
        ("bare: load, ms", [cost.bare.load * 1e3 for cost in costs], 3),
        ("bare: call, us", [cost.bare.call * 1e6 for cost in costs], 2),
        ("fat: selecting adds to load, ms", [cost.selecting * 1e3 for cost in costs], 3),
        ("fat: verifying what is parsed (default), ms", [cost.verifying_parsed * 1e3 for cost in costs], 3),
        ("fat: verifying all weights, ms", [cost.verifying_all * 1e3 for cost in costs], 3),
        ("fat: call adds, us", [cost.call * 1e6 for cost in costs], 2),
        ("bare: resident after load, MB", [cost.bare.loaded / 1e6 for cost in costs], 2),
        ("fat: resident after load, ratio", [cost.loaded_ratio for cost in costs], 3),
        ("fat: resident after calls, ratio", [cost.called_ratio for cost in costs], 3),
        ("fat: all verified, after load, ratio", [cost.loaded_ratio_all for cost in costs], 3),
    )
    for name, figures, digits in rows:
        print(f"{name:<44}{''.join(f'{figure:>20.{digits}f}' for figure in figures)}")


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="pairs of processes (%(default)s)")
    parser.add_argument("--host", type=Path, metavar="FILE", help="nfat_run of a release build (default: build it)")
    arguments = parser.parse_args()
    with temporary_folder() as folder:
        host = arguments.host or build_host(folder / "build")
        costs = [measure(host, fat, 5, arguments.repeat) for fat in weights(folder)]
        costs += [measure(host, fat, 5, arguments.repeat) for fat in transposed(folder)]
        costs += [measure(host, fat, 20_000, arguments.repeat) for fat in small(folder)]
    if arguments.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
    else:
        show(costs, arguments.repeat)


if __name__ == "__main__":
    main()
