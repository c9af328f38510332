"""Lowers the contract's networks for one target, stage by stage; prints what came of each as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.pte.pieces import payload_sha256, read_payload
from pteforge.artifacts.pte.reader import read_pte
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.tasks.call import StageCall, run_call
from pteforge.tasks.catalog import StageName
from pteforge.tasks.model import PlannedModel, PlannedRecipe, PlannedSpecialization
from pteforge.tasks.plan import plan_model
from pteforge.tasks.targets import Target, find_target


def main(name: str, folder: Path) -> None:
    """Lowers every network."""
    print(json.dumps([lower(name, builder, folder / builder) for builder in ("build", "build_mlp")]))  # noqa: T201


def lower(name: str, builder: str, folder: Path) -> dict[str, object]:
    """Runs the plan of one recipe up to `serialize`, and `verify` where this machine has the backends."""
    folder.mkdir()
    here = Path(__file__).parent
    recipe = Recipe.model_validate({"specializations": [{"target": name}], "verify": {"min_sqnr_db": 30.0}})
    target = find_target(name)
    model = PlannedModel(
        name="network",
        config=ModelConfig.model_validate({"source": f"contract_network:{builder}"}),
        recipes=(PlannedRecipe("recipe", recipe, (PlannedSpecialization(target.name, target),), recipe.verify),),
        drawn_inputs=1,
        python_path=(here,),
        folder=folder,
    )
    store = LocalStore.open(folder / "store")
    outputs = {}
    for step in plan_model(model, ["forward"], lambda _: ()).steps:
        if step.stage in {StageName.VERIFY, StageName.REPORT} and not _runs_here(target.backends):
            continue
        if step.stage is StageName.REPORT:
            continue
        inputs = {role: outputs[output.step][output.role] for role, output in step.inputs.items()}
        outputs[step.name] = run_call(StageCall(step.stage, inputs, step.params, store.root, folder, model.python_path))
    file = outputs["serialize/recipe"]["file"]
    backends = read_pte(read_payload(file, store)).backends
    return {
        "sha256": payload_sha256(file, store),
        "upstream": digest_bytes(_lower_upstream(target, builder)),
        "backends": backends,
        "steps": sorted(outputs),
    }


def _lower_upstream(target: Target, builder: str) -> bytes:
    """What ExecuTorch's public call gives with the target's partitioners."""
    import contract_network
    import torch
    from executorch.exir import to_edge_transform_and_lower

    module, inputs = getattr(contract_network, builder)()
    program = torch.export.export(module.eval(), inputs)
    edge = to_edge_transform_and_lower(program, partitioner=list(target.partitioners()))
    content: bytes = edge.to_executorch().buffer
    return content


def _runs_here(backends: tuple[str, ...]) -> bool:
    from executorch.runtime import Runtime

    registry = Runtime.get().backend_registry
    return all(registry.is_available(backend) for backend in backends)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
