"""A search for a quantization next to each combination of the same methods, and what a second run takes.

    python benchmarks/search.py [--network NAME] [--folder DIR] [--only search|each]

EfficientNet-lite0 by default, with 4.7 million trained parameters; see `benchmarks/real_weights.py` for the packages.
The search has the methods of METHODS as variants, and 30 minutes. It is killed half-way, runs again in the same store,
and at last once more. In a store of its own, each combination of the methods is a recipe, which leaves out as many
layers as it has to, without a limit. Sizes are those of the smallest files that keep 99 % of eager's score.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from measuring import exporting, markdown, write_zoo

METHODS: tuple[dict[str, Any], ...] = (
    {"smooth": True},
    {"correct_biases": True},
    {"options": {"dynamic": True}},
)
BUDGET = "30m"
KEEP = 0.99


def combined() -> Iterator[dict[str, Any]]:
    """Fields of `quantize` for each combination."""
    for count in range(len(METHODS) + 1):
        for chosen in combinations(METHODS, count):
            yield {name: value for method in chosen for name, value in method.items()}


def zoo_of(network: str, folder: Path) -> list[Any]:
    """Writes a zoo with the search and the combinations as recipes, and gives the command that exports it."""
    of_all = {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": None}}
    limits = {"keep": KEEP, "evaluator_kwargs": {"tuning": True}}
    recipes = {"search": {**of_all, "quantize": {"search": {**limits, "variants": [*METHODS], "budget": BUDGET}}}}
    for number, fields in enumerate(combined()):
        recipes[f"each-{number}"] = {**of_all, "quantize": {**fields, "search": {**limits, "budget": 500}}}
    model = {
        "source": {"builder": "trained:built", "kwargs": {"name": network}},
        "calibration": {"forward": {"dataset": "trained:calibration", "kwargs": {"name": network}}},
        "accuracy": {"evaluator": "trained:score", "kwargs": {"name": network}},
        "recipes": [*recipes],
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [*exporting(write_zoo(folder, {"net": model}, recipes=recipes), folder), "--json", "--recipe"]


def row(name: str, command: list[Any]) -> list[str]:
    """Runs a command, and gives what it found."""
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    seconds = time.monotonic() - began
    outcomes = json.loads(done.stdout)["models"]["net"]
    files = [outcome for outcome in outcomes.values() if outcome.get("search")]
    if not files:
        return [name, f"{seconds:.1f}", "", "", "; ".join(outcome["problem"] for outcome in outcomes.values())]
    best = min(files, key=lambda outcome: outcome["size"])
    scored = sum(len(outcome["search"]["attempts"]) for outcome in files)
    changes = f"{best['search']['variant']}, {len(best['search']['layers'])} layers in floating point"
    return [name, f"{seconds:.1f}", f"{scored}", f"{best['size']:,}", changes]


def main() -> None:
    """Runs the search, the combinations, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="efficientnet_lite0", help="of benchmarks/trained (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-search")
    parser.add_argument("--only", choices=("search", "each"), help="one half; the other may run at another time")
    options = parser.parse_args()
    rows = [["run", "seconds", "files scored", "bytes", "found"]]
    if options.only != "each":
        search = [*zoo_of(options.network, options.folder / "search"), "search"]
        began = time.monotonic()
        try:
            subprocess.run(search, timeout=120, capture_output=True, check=False)
            print("it was over before it could be killed")
        except subprocess.TimeoutExpired:
            print(f"killed after {time.monotonic() - began:.0f} s")
        rows += [row("search, continued", search), row("search, again", search)]
    if options.only != "search":
        rows.append(row("each combination", [*zoo_of(options.network, options.folder / "each"), "each-*"]))
    print(markdown(rows))


if __name__ == "__main__":
    main()
