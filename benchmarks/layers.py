"""CPU time of each stage for language models of several depths, and again with other weights; see README.md."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import arguments_of, exporting, markdown, prepared_folder, run, write_zoo

RECIPES = ("xnnpack-fp32", "xnnpack-llm-8da4w")

# Every Python process of the command imports this as it starts. Workers are killed, so each stage is written at once.
_HOOK = """
import os, time
from pteforge.tasks.engine import executor

log = os.open(os.environ["LAYERS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
body = executor.run_stage

def timed(work):
    start = time.process_time()
    try:
        return body(work)
    finally:
        os.write(log, f"{work['call']['id']['stage']} {time.process_time() - start}\\n".encode())

timed.__module__, timed.__name__ = body.__module__, body.__name__
executor.run_stage = timed
"""


@dataclass(frozen=True)
class Depth:
    """A model with a number of layers, and a recipe."""

    recipe: str
    layers: int
    cold: Mapping[str, float]  # CPU seconds by stage with nothing cached
    again: Mapping[str, float]  # the same with other weights; stages that are reused have none
    commands: tuple[float, float]  # CPU seconds of all processes of the two commands


def measure(recipe: str, layers: int, width: int, folder: Path, environment: dict[str, str]) -> Depth:
    """Lowers a Llama with random weights, and then with others, with a store in a new folder."""
    config = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "vocab_size": 1000,
    }
    source = {"huggingface": "llama", "task": "text-generation", "config": config, "attention": "custom_sdpa"}
    bounds = {"min_sqnr_db": 0}  # of random weights, four bits leave little
    hooks, spent, seconds = folder / "hooks", [], []
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    for seed in (0, 1):
        model = {"source": source, "recipes": [recipe], "seed": seed, "verify": bounds}
        log = folder / f"stages{seed}"
        paths = os.pathsep.join([str(hooks), *filter(None, [environment.get("PYTHONPATH")])])
        changed = environment | {"PYTHONPATH": paths, "LAYERS_LOG": str(log)}
        spent.append(run(exporting(write_zoo(folder, {"llama": model}), folder), changed, folder / "log").cpu)
        stages: dict[str, float] = defaultdict(float)
        for line in log.read_text(encoding="utf-8").splitlines():
            stage, time = line.split()
            stages[stage] += float(time)
        seconds.append(dict(stages))
    return Depth(recipe, layers, *seconds, (spent[0], spent[1]))


def exponent(measured: list[tuple[int, float]]) -> float:
    """The slope of the line through the logarithms: 1 where time grows with layers, 2 with their square."""
    points = [(math.log(layers), math.log(seconds)) for layers, seconds in measured if seconds > 0]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=(4, 12, 24, 32), help="how many (4 12 24 32)")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64 (%(default)s)")
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="one or more (all)")
    arguments = parser.parse_args()
    depths = []
    with prepared_folder() as (folder, environment):
        for recipe in arguments.recipe or RECIPES:
            for layers in arguments.layers:
                place = folder / f"{recipe}-{layers}"
                depths.append(measure(recipe, layers, arguments.width, place, environment))
                print(f"{recipe}, {layers} layers: {depths[-1].commands[0]:.1f} CPU s", file=sys.stderr)
    if arguments.json:
        print(json.dumps([asdict(depth) for depth in depths], indent=2))
        return
    for recipe in arguments.recipe or RECIPES:
        print(f"\n{recipe}\n\n{markdown(rows([depth for depth in depths if depth.recipe == recipe]))}")


def rows(depths: list[Depth]) -> list[list[str]]:
    """The table of one recipe: a stage in each row, the layers in columns, cold and with other weights."""
    table = [["CPU seconds", *(f"{depth.layers} layers" for depth in depths), "exponent", "other weights"]]
    for stage in depths[-1].cold:
        cold = [depth.cold[stage] for depth in depths]
        grows = exponent([(depth.layers, depth.cold[stage]) for depth in depths]) if len(depths) > 1 else math.nan
        again = depths[-1].again.get(stage)
        ratio = f"{again / cold[-1]:.2f}" if again else "reused"
        table.append([stage, *(f"{seconds:.2f}" for seconds in cold), f"{grows:.2f}", ratio])
    cold, again = depths[-1].commands
    table.append(["command", *(f"{depth.commands[0]:.1f}" for depth in depths), "", f"{again / cold:.2f}"])
    return table


if __name__ == "__main__":
    main()
