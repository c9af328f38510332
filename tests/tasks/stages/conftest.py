"""Stages run as workers run them, but in this process: their calls cross JSON, their artifacts a store on disk."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.pte.pieces import read_payload
from pteforge.artifacts.ref import ArtifactRef
from pteforge.configs.accuracy import resolve_gate
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.errors import InputError
from pteforge.tasks.call import StageCall, run_call
from pteforge.tasks.catalog import StageName
from pteforge.tasks.model import PlannedModel
from pteforge.tasks.params import Params
from pteforge.tasks.plan import ModelPlan, complete_step, plan_model
from pteforge.tasks.recipe_targets import find_targets
from pteforge.tasks.source_params import ExportParams
from pteforge.tasks.targets.find import find_target

ZOO = Path(__file__).parent / "zoo"


@dataclass(frozen=True)
class Lowered:
    """A model with one recipe after all its stages.

    Attributes:
        plan: the steps.
        outputs: step name to outputs by role.
        store: where they are.
    """

    plan: ModelPlan
    outputs: Mapping[str, Mapping[str, ArtifactRef]]
    store: LocalStore

    @property
    def file(self) -> bytes:
        """The produced `.pte`."""
        return read_payload(self.outputs["serialize/tested"]["file"], self.store)

    @property
    def payloads(self) -> Mapping[str, bytes]:
        """What is packed into the `.pte` by specialization; each is a complete one by itself."""
        return {
            name.partition(".")[2]: read_payload(roles["payload"], self.store)
            for name, roles in self.outputs.items()
            if name.startswith("compile/")
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """What `report` says."""
        found: dict[str, Any] = json.loads(self.store.read_artifact(self.outputs["report/tested"]["provenance"]))
        return found


@dataclass(frozen=True)
class Stages:
    """Runs stages against one store, in one folder."""

    store: LocalStore
    folder: Path

    def run(
        self,
        stage: StageName,
        params: Params,
        inputs: Mapping[str, ArtifactRef] | None = None,
        *,
        program_file: Path | None = None,
        python_path: tuple[Path, ...] = (ZOO,),
    ) -> Mapping[str, ArtifactRef]:
        """One stage."""
        call = StageCall(stage, inputs or {}, params, self.store.root, self.folder, python_path, program_file)
        return run_call(StageCall.from_json(json.loads(json.dumps(call.to_json()))))

    def export(self, builder: str, *, program_file: Path | None = None, **params: Any) -> Mapping[str, ArtifactRef]:
        """The export stage on a builder, called without arguments unless `kwargs` are given."""
        source = {"builder": builder, "kwargs": params.pop("kwargs", {})}
        return self.run(StageName.EXPORT, ExportParams(source=source, **params), program_file=program_file)

    def value(self, ref: ArtifactRef) -> Any:
        """A stored tree."""
        from pteforge.artifacts.programs import load_value

        return load_value(ref, self.store)

    def program(self, ref: ArtifactRef) -> Any:
        """A stored program."""
        from pteforge.artifacts.programs import load_program

        return load_program(ref, self.store)

    def lower(self, source: str | Mapping[str, Any], recipe: Mapping[str, Any], **config: Any) -> Lowered:
        """Everything from the source to the report, as a zoo of one model with one recipe would."""
        made = Recipe.model_validate(recipe)
        found = find_targets("tested", made, made.verify, lambda problem, field: InputError(f"{field}: {problem}"))
        planned = replace(found, gate=resolve_gate(made.accuracy, None))
        model = PlannedModel(
            name="model",
            config=ModelConfig.model_validate({"source": source, **config}),
            recipes=(planned,),
            drawn_inputs=made.verify.drawn_inputs,
            python_path=(ZOO,),
            folder=self.folder,
        )
        outputs: dict[str, Mapping[str, ArtifactRef]] = {}
        self._run_plan(plan_model(model, None, _watching_nothing), model, outputs)
        methods = json.loads(self.store.read_artifact(outputs["export"]["methods"]))
        plan = plan_model(model, methods, _watching_nothing)
        self._run_plan(plan, model, outputs)
        return Lowered(plan, outputs, self.store)

    def _run_plan(self, plan: ModelPlan, model: PlannedModel, outputs: dict[str, Mapping[str, ArtifactRef]]) -> None:
        for step in plan.steps:
            if step.name not in outputs:
                complete = complete_step(step, plan, dict.fromkeys(outputs, "0" * 64))
                inputs = {role: outputs[output.step][output.role] for role, output in complete.inputs.items()}
                outputs[step.name] = self.run(step.stage, complete.params, inputs, program_file=model.program_file)


def _watching_nothing(_name: str) -> tuple[str, ...]:
    return ()


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    """Stages on a new store; afterwards the working directory and the import path are what they were."""
    monkeypatch.syspath_prepend(ZOO)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "zoo"
    folder.mkdir()
    return Stages(LocalStore.open(tmp_path / "store"), folder)


@pytest.fixture(scope="session")
def upstream() -> Callable[..., bytes]:
    """Lowers a builder's model with ExecuTorch's public functions alone, in one go. Files are made once per session."""
    files: dict[str, bytes] = {}

    def made(builder: str, recipe: Mapping[str, Any]) -> bytes:
        key = json.dumps([builder, recipe], sort_keys=True)
        if key not in files:
            files[key] = lower(builder, recipe)
        return files[key]

    def lower(builder: str, recipe: Mapping[str, Any]) -> bytes:
        return bytes(_lower_upstream(builder, recipe).buffer)

    return made


@pytest.fixture
def upstream_manager() -> Callable[[str, Mapping[str, Any]], Any]:
    """The same, as the ExecutorchProgramManager that the public functions give."""
    return _lower_upstream


def _lower_upstream(builder: str, recipe: Mapping[str, Any]) -> Any:
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
    from pteforge.tasks.stages.operators import find_operators

    made = Recipe.model_validate(recipe)
    (specialization,) = made.specializations
    programs, constants = _export_upstream(builder)
    manager = to_edge_transform_and_lower(
        programs,
        partitioner=list(find_target(specialization.target, dict(specialization.options)).partitioners()),
        constant_methods=constants or None,
        compile_config=EdgeCompileConfig(
            _skip_dim_order=made.edge.skip_dim_order,
            preserve_ops=find_operators(made.edge.preserve_operators),
        ),
    )
    layout = made.compile
    signatures = [manager.exported_program(method).graph_signature for method in programs]
    state = [name for signature in signatures for name in signature.buffers_to_mutate.values()]
    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass([f"b_{name}" for name in state])] if state else [],
        segment_alignment=layout.segment_alignment,
        extract_delegate_segments=layout.extract_delegate_segments,
        external_constants=made.output.external_data,
        emit_stacktrace=layout.emit_stacktrace,
    )
    return manager.to_executorch(config)


def _export_upstream(builder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch
    from pteforge.configs.definition import ModelDefinition

    torch.manual_seed(0)
    module, _, name = builder.partition(":")
    made = getattr(importlib.import_module(module), name)()
    if isinstance(made, ModelDefinition):
        methods = {key: (m.module, m.example_inputs[0], m.dynamic_shapes) for key, m in made.methods.items()}
        constants = dict(made.constant_methods)
    elif isinstance(made, tuple):
        model, inputs = made
        methods, constants = {"forward": (model, inputs if isinstance(inputs, tuple) else inputs[0], None)}, {}
    else:
        methods, constants = {"forward": (made.get_eager_model(), made.get_example_inputs(), None)}, {}
    return {
        key: torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)
        for key, (model, inputs, shapes) in methods.items()
    }, constants
