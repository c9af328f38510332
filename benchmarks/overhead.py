"""The CPU time of a run with nothing cached by kind of process, for zoos of two sizes; see README.md."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from measuring import arguments_of, exporting, prepared_folder
from networks import write_generated
from pteforge.artifacts.store import open_store

KINDS = ("stages", "worker server", "command")
_TICK = 0.02  # seconds between two looks at the processes


@dataclass(frozen=True)
class Overhead:
    """One run."""

    models: int  # how many the zoo has
    stages: int  # how many stages ran
    wall: float  # seconds from start to exit
    # CPU seconds by kind of process: ``stages`` are all workers; the command itself has Prefect's client and server
    cpu: Mapping[str, float]
    first: float  # seconds from the start to the end of the first stage


def measure(folder: Path, models: int, environment: dict[str, str], before: Sequence[str] = ()) -> Overhead:
    """Lowers so many generated models from nothing; the command line comes after what is to stand `before` it."""
    command = [*before, *map(str, exporting(write_generated(folder / "zoo", models), folder))]
    cpu: dict[str, float] = {}
    first = 0.0
    with (folder / "log").open("wb") as log:
        start = time.perf_counter()
        variables = environment | {"PTEFORGE_CACHE": str(folder / "cache")}
        process = psutil.Popen(command, env=variables, stdout=log, stderr=log)
        while process.poll() is None:
            cpu |= dict(_seconds(process))
            if not first and any((folder / "store" / "ledger" / "stages").glob("*/*")):
                first = time.perf_counter() - start
            time.sleep(_TICK)
        wall = time.perf_counter() - start
    if process.returncode:
        sys.exit((folder / "log").read_text(encoding="utf-8"))
    with open_store(str(folder / "store")) as store:
        (record,) = store.runs
    stages = sum(stage.status == "ran" for model in record.models.values() for stage in model)
    return Overhead(models, stages, wall, {kind: cpu.get(kind, 0.0) for kind in KINDS}, first)


def _seconds(command: psutil.Process) -> Iterator[tuple[str, float]]:
    """CPU seconds so far, by kind: of the command, of its worker server, and of workers, whether ended or not."""
    yield "command", _cpu(command)[0]
    for server in command.children():
        with suppress(psutil.Error):
            if "tasks.engine.workers" in " ".join(server.cmdline()):
                own, ended = _cpu(server)
                yield "worker server", own
                yield "stages", ended + sum(sum(_cpu(worker)) for worker in server.children())


def _cpu(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds so far of a process, and of its children that have ended."""
    times = process.cpu_times()
    return times.user + times.system, times.children_user + times.children_system


def _outside(run: Overhead) -> float:
    """CPU seconds that are not a worker's."""
    return sum(run.cpu.values()) - run.cpu["stages"]


PARTS = {
    "imports": ("<frozen importlib",),
    "Prefect's server": ("prefect/server", "embedded_server", "uvicorn", "sqlalchemy", "aiosqlite", "docket/"),
    "Prefect's engine and client": ("prefect/", "websockets/"),
}
"""What stacks of the command's own threads belong to, by text in them, the first that fits; the rest is pteforge's."""
_RATE = 100  # samples in a second


def profile(folder: Path, models: int, environment: dict[str, str]) -> tuple[Overhead, dict[str, float]]:
    """Lowers so many models under py-spy: the run, and the seconds that each part held the interpreter's lock."""
    folder.mkdir()
    samples = folder / "samples"
    spy = ["py-spy", "record", "--gil", "--rate", str(_RATE), "--format", "raw", "--output", str(samples), "--"]
    run = measure(folder, models, environment, spy)
    seconds: Counter[str] = Counter()
    for line in samples.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        # What a stage's task calls of ours is ours, although Prefect calls it.
        stack = stack.rpartition("run_stage_call")[2]
        part = next((part for part, texts in PARTS.items() if any(text in stack for text in texts)), "pteforge")
        seconds[part] += int(count) / _RATE
    return run, dict(seconds)


def print_profile(few: tuple[Overhead, Mapping[str, float]], many: tuple[Overhead, Mapping[str, float]]) -> None:
    """Prints seconds by part for both zoos, and what each further stage costs."""
    sizes = [f"{run.models} models" for run, _ in (few, many)]
    print(f"{'seconds of the command':<32}{sizes[0]:>12}{sizes[1]:>12}{'ms a stage':>12}")
    for part in (*PARTS, "pteforge"):
        first, last = few[1].get(part, 0.0), many[1].get(part, 0.0)
        each = 1000 * (last - first) / (many[0].stages - few[0].stages)
        print(f"{part:<32}{first:>12.1f}{last:>12.1f}{each:>12.1f}")


def main() -> None:
    """Measures both zoos, and prints seconds by kind of process, and what each further stage costs."""
    parser = arguments_of(__doc__)
    parser.add_argument("--models", type=int, nargs=2, default=(2, 10), metavar=("FEW", "MANY"), help="%(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it, stacked, as .png or .svg")
    parser.add_argument("--profile", action="store_true", help="what the command spends, by part; needs py-spy")
    arguments = parser.parse_args()
    with prepared_folder() as (folder, environment):
        if arguments.profile:
            print_profile(*(profile(folder / str(models), models, environment) for models in arguments.models))
            return
        rounds = [
            [measure(folder / f"{number}-{models}", models, environment) for models in arguments.models]
            for number in range(arguments.rounds)
        ]
        runs = [sorted(each, key=_outside)[len(each) // 2] for each in zip(*rounds, strict=True)]
    few, many = runs
    each = (_outside(many) - _outside(few)) / (many.stages - few.stages)
    if arguments.plot:
        draw(runs, arguments.plot)
    if arguments.json:
        print(json.dumps({"runs": [asdict(run) for run in runs], "cpu_per_stage": each}, indent=2))
        return
    print(f"{'CPU seconds':<24}" + "".join(f"{f'{run.models} models':>12}" for run in runs))
    for kind in KINDS:
        print(f"{kind:<24}" + "".join(f"{run.cpu[kind]:>12.1f}" for run in runs))
    print(f"{'stages':<24}" + "".join(f"{run.stages:>12}" for run in runs))
    print(f"{'wall seconds':<24}" + "".join(f"{run.wall:>12.1f}" for run in runs))
    print(f"{'until the first stage':<24}" + "".join(f"{run.first:>12.1f}" for run in runs))
    print(f"each further stage costs {1000 * each:.0f} ms of CPU outside of its worker")


def draw(runs: list[Overhead], file: Path) -> None:
    """Draws CPU seconds as one stacked bar for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 0.7 * len(runs)), layout="constrained")
    axes = figure.subplots()
    names, start = [f"{run.models} models" for run in runs], [0.0] * len(runs)
    for kind in KINDS:
        seconds = [run.cpu[kind] for run in runs]
        axes.barh(names, seconds, left=start, label=kind)
        start = [done + more for done, more in zip(start, seconds, strict=True)]
    axes.set_xlabel("CPU seconds")
    axes.legend(ncols=len(KINDS), loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
