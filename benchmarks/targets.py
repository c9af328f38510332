"""What each target does with the starter zoo, a transformer's block and a network of dynamic sizes.

    python benchmarks/targets.py [--only TARGET,...] [--write]

In fp32 and in int8, by the target's own quantizer, in an environment whose extras are installed, such as
`pip install -e ".[ethos-u,openvino,vgf]"`. `--write` puts the table into docs/reference/targets.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from breadth import write_section
from measuring import exporting, markdown, temporary_folder, write_zoo
from microcontrollers import MODELS as TINY
from microcontrollers import ROOT
from pteforge.configs.model import MethodDefinition, ModelDefinition
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.find import find_target_class
from torch import nn
from torch.export import Dim

PAGE = ROOT / "docs" / "reference" / "targets.md"
MODELS = {
    **{name: TINY[name] for name in ("deep_autoencoder", "ds_cnn", "mobilenet_v1_025", "resnet8")},
    "lstm": "executorch.examples.models.lstm.model:LSTMModel",
    "sdpa": "executorch.examples.models.toy_model.model:SdpaModule",
    "block": "targets:block",
    "dynamic": "targets:dynamic",
}
_LONGEST = 160


def block() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A transformer's encoder layer over 16 tokens."""
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0).eval(), (torch.randn(1, 16, 64),)


def dynamic() -> ModelDefinition:
    """Linear layers for batches of any size up to 16."""
    module, example = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.randn(3, 16),)
    return ModelDefinition({"forward": MethodDefinition(module.eval(), [example], ({0: Dim("batch", max=16)},))})


def recipes(names: list[str]) -> dict[str, Any]:
    """Recipes by name: those in fp32 have no suffix."""
    free = {"min_sqnr_db": None, "min_part_sqnr_db": None, "required": False}
    made: dict[str, Any] = {}
    for name in names:
        fields = {"specializations": [{"target": name}], "verify": free}
        made[name] = fields
        if find_target_class(name).QuantizerOptions:
            made[f"{name}-int8"] = {**fields, "quantize": {"quantizer": name}}
    return made


def cell(outcomes: list[dict[str, Any]]) -> str:
    """How many files were made, how many of them were run, by what, and the smallest share that is delegated."""
    files = [outcome for outcome in outcomes if outcome.get("file")]
    if not files:
        return "none" if len(outcomes) > 1 else "no"
    places = Counter(place for outcome in files for place in outcome["proven_on"].get("", ()))
    shares = [work["share"] or 0.0 for outcome in files for work in outcome["delegation"] or ()]
    run = ", ".join(f"{number} by {place}" if len(outcomes) > 1 else f"by {place}" for place, number in places.items())
    count = f"{len(files)} of {len(outcomes)}" if len(outcomes) > 1 else "made"
    return f"{count}, {f'run {run}' if run else 'not run'}, {min(shares, default=0):.0%} delegated"


def rows(names: list[str], folder: Path) -> Iterator[list[str]]:
    """A row for each target, in fp32 and in int8."""
    here = [name for name in names if find_target_class(name).available() is None]
    of_targets = recipes(here)
    models = {name: {"source": source, "recipes": [*of_targets]} for name, source in MODELS.items()}
    paths = [str(Path(__file__).parent), str(ROOT / "examples" / "zoo")]
    zoo = write_zoo(folder, models, recipes=of_targets, python_path=paths)
    done = subprocess.run([*exporting(zoo, folder), "--json"], cwd=folder, stdout=subprocess.PIPE, check=False)
    outcomes = json.loads(done.stdout)["models"]
    for name in names:
        if reason := find_target_class(name).available():
            yield [f"`{name}`", "", "", "", re.split(r"; |: ", reason)[0]]
        for recipe in [each for each in of_targets if each in (name, f"{name}-int8")]:
            of_recipe = {model: made[recipe] for model, made in outcomes.items()}
            starter = [made for model, made in of_recipe.items() if model not in ("block", "dynamic")]
            problems = {made["problem"].splitlines()[0] for made in of_recipe.values() if not made.get("file")}
            said = "; ".join(problem[:_LONGEST].replace("|", "/") for problem in sorted(problems)[:2])
            what = "int8" if recipe.endswith("-int8") else "fp32"
            yield [f"`{name}`, {what}", cell(starter), cell([of_recipe["block"]]), cell([of_recipe["dynamic"]]), said]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(target_names()))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with temporary_folder() as folder:
        made = list(rows(options.only.split(","), folder))
    text = markdown([["target", "starter zoo", "transformer block", "dynamic sizes", "what stops others"], *made])
    print(text)
    if options.write:
        write_section(PAGE, "benchmarks/targets.py --write", text)


if __name__ == "__main__":
    main()
