"""A search for a quantization next to each combination of the same methods, and what a second run takes.

    python benchmarks/search.py [--network NAME] [--folder DIR]

EfficientNet-lite0 by default, with 4.7 million trained parameters; see `benchmarks/real_weights.py` for the packages.
The search has the methods of METHODS as variants, and 30 minutes. Then each combination of them that the quantizer
takes is a recipe of its own, which leaves out as many layers as it has to, without a limit. Sizes are those of the
smallest files that keep 99 % of eager's score. A search that is killed half-way runs again in the same store, and at
last once more.
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
    {"options": {"ranges": "percentile"}},
    {"options": {"dynamic": True}},
)
BUDGET = "30m"
KEEP = 0.99


def combined() -> Iterator[dict[str, Any]]:
    """Fields of `quantize` for each combination; computed scales have no ranges."""
    for count in range(len(METHODS) + 1):
        for chosen in combinations(METHODS, count):
            fields: dict[str, Any] = {}
            for method in chosen:
                options = {**fields.get("options", {}), **method.get("options", {})}
                fields |= method | ({"options": options} if options else {})
            if not {"ranges", "dynamic"} <= fields.get("options", {}).keys():
                yield fields


def main() -> None:
    """Runs the search, the combinations, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="efficientnet_lite0", help="of benchmarks/trained (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-search")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    of_all = {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": None}}
    limits = {"keep": KEEP, "evaluator_kwargs": {"tuning": True}}
    recipes = {"search": {**of_all, "quantize": {"search": {**limits, "variants": [*METHODS], "budget": BUDGET}}}}
    for number, fields in enumerate(combined()):
        recipes[f"each-{number}"] = {**of_all, "quantize": {**fields, "search": {**limits, "budget": 500}}}
    model = {
        "source": {"builder": "trained:built", "kwargs": {"name": options.network}},
        "calibration": {"forward": {"dataset": "trained:calibration", "kwargs": {"name": options.network}}},
        "accuracy": {"evaluator": "trained:score", "kwargs": {"name": options.network}},
        "recipes": [*recipes],
    }
    zoo = write_zoo(options.folder, {"net": model}, recipes=recipes)
    search = [*exporting(zoo, options.folder), "--recipe", "search", "--json"]
    began = time.monotonic()
    try:
        subprocess.run(search, timeout=120, capture_output=True, check=False)
        print("it was over before it could be killed")
    except subprocess.TimeoutExpired:
        print(f"killed after {time.monotonic() - began:.0f} s")
    rows = [["run", "seconds", "files scored", "bytes", "found"]]
    for name, command in (
        ("search, continued", search),
        ("search, again", search),
        ("each combination", [*exporting(zoo, options.folder), "--recipe", "each-*", "--json"]),
    ):
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, check=False)
        seconds = time.monotonic() - began
        outcomes = json.loads(done.stdout)["models"]["net"]
        if files := [outcome for outcome in outcomes.values() if outcome.get("search")]:
            best = min(files, key=lambda outcome: outcome["size"])
            scored = sum(len(outcome["search"]["attempts"]) for outcome in files)
            changes = f"{best['search']['variant']}, {len(best['search']['layers'])} layers in floating point"
            rows.append([name, f"{seconds:.1f}", f"{scored}", f"{best['size']:,}", changes])
        else:
            rows.append(
                [name, f"{seconds:.1f}", "", "", "; ".join(outcome["problem"] for outcome in outcomes.values())]
            )
    print(markdown(rows))


if __name__ == "__main__":
    main()
