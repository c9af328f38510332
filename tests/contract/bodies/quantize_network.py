"""Quantizes the contract's network with one target's quantizer and lowers it for that target; prints what came of it.

Arguments: the target and a folder. Prints JSON.
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


def main(name: str, folder: Path) -> None:
    """Runs the plan of one recipe up to the file."""
    here = Path(__file__).parent
    recipe = Recipe.model_validate({"quantize": {"quantizer": name}, "specializations": [{"target": name}]})
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
    made = {
        "program": program.identity,
        "sha256": payload_sha256(file, store),
        "backends": read_pte(read_payload(file, store)).backends,
        "quantized": sum("quantize" in each for each in operators),
    }
    print(json.dumps(made))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
