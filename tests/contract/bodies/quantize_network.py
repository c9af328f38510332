"""Quantizes the contract's network with targets' quantizers, and lowers it for each; prints what came of it, as JSON.

Arguments: a folder and the targets. One process for all of them, since most of its time goes to imports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.programs.codec import load_program
from pteforge.artifacts.pte.pieces import payload_sha256, read_payload
from pteforge.artifacts.pte.reader import read_pte
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.tasks.call import StageCall, run_call
from pteforge.tasks.catalog import StageName
from pteforge.tasks.model import PlannedModel
from pteforge.tasks.plan import plan_model
from pteforge.tasks.recipe_targets import find_targets

# Core ML has no int8 before.
OPTIONS = {"coreml": {"minimum_deployment_target": "iOS17", "take_over_mutable_buffers": False}}


def main(folder: Path, names: list[str]) -> None:
    """Goes through the targets."""
    print(json.dumps({name: quantize(name, folder / name) for name in names}))  # noqa: T201


def quantize(name: str, folder: Path) -> dict[str, object]:
    """Runs the plan of one recipe up to the file."""
    folder.mkdir()
    here = Path(__file__).parent
    specialization = {"target": name, "options": OPTIONS.get(name, {})}
    recipe = Recipe.model_validate({"quantize": {"quantizer": name}, "specializations": [specialization]})
    model = PlannedModel(
        name="network",
        config=ModelConfig.model_validate({"source": "contract_network:build"}),
        recipes=(find_targets("recipe", recipe, recipe.verify.bounds, lambda problem, _: AssertionError(problem)),),
        drawn_inputs=0,
        python_path=(here,),
        folder=folder,
    )
    store = LocalStore.open(folder / "store")
    outputs = {}
    for step in plan_model(model, ["forward"], lambda _: ()).steps:
        if step.stage not in {StageName.VERIFY, StageName.REPORT}:
            inputs = {role: outputs[each.step][each.role] for role, each in step.inputs.items()}
            call = StageCall(step.stage, inputs, step.params, store.root, folder, model.python_path)
            outputs[step.name] = run_call(call)
    program, file = outputs["quantize/forward/recipe"]["program"], outputs["serialize/recipe"]["file"]
    operators = [str(node.target) for node in load_program(program, store).graph.nodes]
    return {
        "program": program.identity,
        "sha256": payload_sha256(file, store),
        "backends": read_pte(read_payload(file, store)).backends,
        "quantized": sum("quantize" in each for each in operators),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
