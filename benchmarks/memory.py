"""Memory of every stage that lowers a large transformer, relative to its weights.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from measuring import arguments_of, exporting, peak_of, prepared_folder, size_of, write_zoo
from networks import LLAMAS
from pteforge.artifacts.store import open_store

GIB = 1 << 30
RECIPES = ("portable-fp32", "xnnpack-fp32", "fat")
SMALL = ("edge", "partition")
"""Stages that read no weights."""


@dataclass(frozen=True)
class Peaks:
    """Peak memory, in bytes.

    Attributes:
        weights: bytes of the model's parameters.
        stages: by recipe and step name, memory of its worker process beyond the server that it was forked from.
        command: resident memory of the command's own process.
        store: size of the store on disk, with what all stages made.
    """

    weights: int
    stages: Mapping[str, Mapping[str, int]]
    command: int
    store: int

    def bound(self, step: str) -> float:
        """The limit for a worker."""
        return GIB / 2 if step.split("/", maxsplit=1)[0] in SMALL else 1.6 * self.weights + 0.6 * GIB

    def over(self) -> bool:
        """Whether a worker used more than its limit."""
        steps = [(step, peak) for recipe in self.stages.values() for step, peak in recipe.items()]
        return any(peak > self.bound(step) for step, peak in steps)


def measure(model: str, recipes: list[str], folder: Path, environment: dict[str, str]) -> Peaks:
    """Lowers a model from nothing, one stage at a time."""
    fat = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
    of_model = {"source": {"builder": "networks:llama", "kwargs": {"size": model}}, "recipes": recipes}
    of_model |= {"verify": {"min_sqnr_db": 20}} if model.endswith("bf16") else {}
    command = exporting(write_zoo(folder, {model: of_model}, recipes={"fat": fat}), folder, "--jobs", "1")
    with (folder / "log").open("wb") as log:
        process = psutil.Popen([*map(str, command)], env=environment, stdout=log, stderr=subprocess.STDOUT)
        resident = peak_of(process)
    if process.returncode:
        sys.exit(f"{(folder / 'log').read_text()}\npteforge ended with {process.returncode}")
    stages = {}
    with open_store(str(folder / "store")) as store:
        for recipe in recipes:
            provenance = json.loads((folder / "out" / model / f"{recipe}.json").read_text(encoding="utf-8"))
            records = {step: store.ledger.lookup(key) for step, key in provenance["stage_keys"].items()}
            stages[recipe] = {step: record.peak_memory for step, record in records.items() if record}
    return Peaks(LLAMAS[model].weights, stages, resident, size_of((folder / "store").rglob("*")))


def main() -> None:
    """Prints a table; exits with 1 if a worker used more than its limit."""
    parser = arguments_of(__doc__)
    parser.add_argument("--model", default="135M", choices=list(LLAMAS), help="its size (%(default)s)")
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="one or more (all)")
    chosen = parser.parse_args()
    with prepared_folder() as (folder, environment):
        peaks = measure(chosen.model, chosen.recipe or list(RECIPES), folder, environment)
    if chosen.json:
        print(json.dumps(asdict(peaks), indent=2))
    else:
        show(chosen.model, peaks)
    if peaks.over():
        sys.exit("more than the limit")


def show(model: str, peaks: Peaks) -> None:
    """Prints the table."""
    print(f"{f'{model}, {peaks.weights / GIB:.2f} GiB of weights':<44}{'GiB':>8}{'x weights':>12}{'limit':>8}")
    steps = [
        (f"{recipe}: {step}", peak, peaks.bound(step))
        for recipe in peaks.stages
        for step, peak in peaks.stages[recipe].items()
    ]
    others = [
        ("the command's own process", peaks.command, 300e6),
        ("the store, on disk", peaks.store, 1.1 * peaks.weights + 5e6),
    ]
    for name, peak, limit in (*steps, *others):
        print(f"{name:<44}{peak / GIB:>8.2f}{peak / peaks.weights:>12.2f}{limit / GIB:>8.2f}")


if __name__ == "__main__":
    main()
