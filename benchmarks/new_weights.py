"""Compares the CPU time of lowering a transformer, and then the same with other weights; see README.md."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from measuring import Seconds, exporting, prepared_folder, run, write_zoo
from pteforge.artifacts.store import open_store
from pteforge.tasks.upstream import SWITCH

RECIPES = ("portable-fp32", "xnnpack-fp32")


def export(folder: Path, recipe: str, environment: dict[str, str], **kwargs: int) -> Seconds:
    """One run of `pteforge export`, with the store in `folder`."""
    source = {"builder": "networks:encoder", "kwargs": kwargs}
    zoo = write_zoo(folder, {"transformer": {"source": source, "recipes": [recipe]}})
    return run(exporting(zoo, folder), environment, folder / "log")


def seconds_of_stages(folder: Path) -> dict[str, float]:
    """Wall seconds of each stage of the last run, those that were cached with 0."""
    with open_store(str(folder / "store")) as store:
        last = max(store.runs, key=lambda record: record.started)
    (stages,) = last.models.values()
    return {stage.stage: stage.seconds if stage.status == "ran" else 0.0 for stage in stages}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="also the first run without our patches of ExecuTorch")
    arguments = parser.parse_args()
    with prepared_folder() as (folder, environment):
        print(f"{'recipe':<16}{'nothing cached, CPU s':>24}{'new weights, CPU s':>22}{'ratio':>8}")
        ratios: dict[str, list[float]] = {recipe: [] for recipe in RECIPES}
        to_plain: dict[str, list[float]] = {recipe: [] for recipe in RECIPES}
        stages: dict[tuple[str, str], tuple[list[float], list[float]]] = {}  # by recipe and stage: cold, new weights
        for number in range(arguments.rounds):
            for recipe in RECIPES:
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    size = {"layers": arguments.layers, "width": arguments.width}
                    spent = []
                    for seed in (0, 1):
                        spent.append(export(Path(place), recipe, environment, seed=2 * number + seed, **size).cpu)
                        for stage, seconds in seconds_of_stages(Path(place)).items():
                            stages.setdefault((recipe, stage), ([], []))[seed].append(seconds)
                cold, new = spent
                ratios[recipe].append(new / cold)
                print(f"{recipe:<16}{cold:>24.1f}{new:>22.1f}{new / cold:>8.2f}", flush=True)
                if arguments.plain:
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        plain = {**environment, SWITCH: "plain"}
                        cold = export(Path(place), recipe, plain, seed=2 * number, **size).cpu
                    to_plain[recipe].append(new / cold)
                    print(f"{'  unpatched':<16}{cold:>24.1f}{'':>22}{new / cold:>8.2f}", flush=True)
        for what, by_recipe in (("median", ratios), ("median, to unpatched", to_plain)):
            for recipe, each in by_recipe.items():
                if each:
                    print(f"{recipe:<16}{what:>46}{median(each):>8.2f}")
        print(f"\n{'wall seconds of stages':<32}{'nothing cached':>16}{'new weights':>16}")
        for (recipe, stage), (first, again) in stages.items():
            print(f"{recipe:<16}{stage:<16}{median(first):>16.1f}{median(again):>16.1f}")


if __name__ == "__main__":
    main()
