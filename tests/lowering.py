"""The one way in which tests lower models in their own process, and ExecuTorch's own way for parts of them.

Stages run as workers run them: their calls cross JSON, their artifacts a store on disk. Errors are raised as they are.
Tests use this through the fixtures `stages` and `lower`, and import recipes from here.
"""

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pteforge.artifacts.digest import Digest, digest_json
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import Store, open_store
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.configs.verification import resolve_gate
from pteforge.errors import InputError
from pteforge.tasks.engine.executor import Executor, StageWork, run_stage
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.engine.runner import CutShort, Done, StageCall
from pteforge.tasks.engine.stage import Params, Stage, Workspace, from_roles, to_roles
from pteforge.tasks.engine.workers import InProcess
from pteforge.tasks.export.stages.export import Export
from pteforge.tasks.lowering.graph import lower_model
from pteforge.tasks.lowering.model import PlannedModel, plan_recipe
from pteforge.tasks.lowering.runs import ModelRun, run_without_loop
from pteforge.tasks.programs.canonical import program_form
from pteforge.tasks.programs.payload import read_payload
from pteforge.tasks.programs.program import load_program
from pteforge.tasks.programs.storages import StorageTable
from pteforge.tasks.programs.values import load_value
from pteforge.tasks.targets.find import find_target

ZOO = Path(__file__).parent / "zoo"


def recipe(*targets: str | Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A recipe for targets by name, or for specializations with options: several are packed into a fat file."""
    specializations = [{"target": target} if isinstance(target, str) else dict(target) for target in targets]
    form = {"output": {"form": "fat"}} if len(targets) > 1 else {}
    return {"specializations": specializations} | form | fields


def checked_recipe(*targets: str | Mapping[str, Any], **fields: Any) -> Recipe:
    """The same, as `pteforge.export` takes it."""
    return Recipe.model_validate(recipe(*targets, **fields))


PORTABLE = recipe("portable")
XNNPACK = recipe("xnnpack")


@dataclass(frozen=True)
class Lowered:
    """A model after all stages of one recipe, which is called "tested".

    Attributes:
        steps: result by step, without the recipe's name: "compile", "edge/forward".
        store: where outputs are.
    """

    steps: Mapping[str, Done]
    store: LocalStore

    @property
    def outputs(self) -> Mapping[str, Mapping[str, ArtifactRef]]:
        """Step to outputs by role."""
        return {name: done.roles for name, done in self.steps.items()}

    @property
    def file(self) -> bytes:
        """The produced `.pte`."""
        return read_payload(self.outputs["serialize"]["file"], self.store)

    @property
    def identities(self) -> Mapping[tuple[str, str], str]:
        """By step and role, of what was made of exported programs.

        ETRecords are left out: in them, nodes have as many ancestors as there were traces.
        """
        return {
            (step, role): ref.identity
            for step, roles in self.outputs.items()
            for role, ref in roles.items()
            if not step.startswith("export") and role != "etrecord"
        }

    @property
    def payloads(self) -> Mapping[str, bytes]:
        """What is packed into the `.pte` by specialization; each is a complete one by itself."""
        return {
            name.removeprefix("compile.").removeprefix("compile"): read_payload(roles["payload"], self.store)
            for name, roles in self.outputs.items()
            if name.startswith("compile")
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """What `report` says."""
        return self.json("report", "provenance")

    @property
    def figures(self) -> dict[str, Any]:
        """What `verify` says of the file."""
        return self.findings["figures"]

    @property
    def findings(self) -> dict[str, Any]:
        """What all stages found out, by name."""
        return self.provenance["findings"]

    def json(self, step: str, role: str) -> Any:
        """An output that is JSON."""
        return self.store.read_json(self.outputs[step][role])

    def program(self, step: str) -> Any:
        """The program that a step made."""
        return load_program(self.outputs[step]["program"], self.store)

    def value(self, step: str, role: str) -> Any:
        """An output that is a tree of tensors and plain values."""
        return load_value(self.outputs[step][role], self.store)


class BodyRunner:
    """Runs bodies in this process, from calls that have crossed JSON, unless there are results of an equal call."""

    def __init__(self, store: Store, results: dict[str, Mapping[str, ArtifactRef]]) -> None:
        self.store = store
        self._keys = Executor(store, InProcess())
        self._results = results

    async def __call__(self, call: StageCall) -> Done:
        key = self._keys.key(call)
        if key.digest() not in self._results:
            roles = run_stage(json.loads(json.dumps(StageWork(call, self.store.local.root).to_json())))["outputs"]
            self._results[key.digest()] = {role: ArtifactRef.from_json(ref) for role, ref in roles.items()}
        return Done(call, key, self._results[key.digest()], False)


@dataclass(frozen=True)
class Stages:
    """Runs stages against one store, in one folder.

    Attributes:
        results: of earlier lowerings on the store, by stage key: equal stages run once. None to run all of them.
    """

    store: LocalStore
    folder: Path
    results: dict[str, Mapping[str, ArtifactRef]] | None = None

    def lower(
        self, source: str | Mapping[str, Any], recipe: Mapping[str, Any], *, until: str | None = None, **config: Any
    ) -> Lowered:
        """Everything from the source to the report, or to a stage, as a zoo of one model with one recipe would."""
        made = Recipe.model_validate(recipe)
        planned = plan_recipe(
            "tested",
            made,
            made.verify,
            ModuleSearch((ZOO,)),
            lambda problem, field: InputError(f"{field}: {problem}"),
            resolve_gate(made.accuracy, None),
        )
        config = ModelConfig.model_validate({"source": source, **config})
        model = PlannedModel.of_config(
            "model",
            config,
            (planned,),
            made.verify.drawn_inputs,
            source=config.source,
            python_path=(ZOO,),
            folder=self.folder,
        )
        with open_store(str(self.store.root)) as opened:
            runner = BodyRunner(opened, {} if self.results is None else self.results)
            run = ModelRun(runner, model.ending_with(until) if until else model)
            (result,) = run_without_loop(lower_model(run)).values()
        if isinstance(result, Exception) and not (until and isinstance(result, CutShort)):
            raise result
        return Lowered({step.part: done for step, done in run.recipes["tested"].done.items()}, self.store)

    def run(
        self,
        stage: type[Stage],
        params: Params,
        inputs: Mapping[str, ArtifactRef] | None = None,
        *,
        program_file: Path | None = None,
    ) -> Mapping[str, ArtifactRef]:
        """One stage, from roles to roles; its params cross JSON."""
        sent = stage.Params.model_validate(json.loads(json.dumps(params.model_dump(mode="json"))))
        with self.store.scratch() as scratch:
            work = Workspace(self.store, scratch, self.folder, (ZOO,), program_file)
            return to_roles(stage.run(from_roles(stage.Inputs, inputs or {}), sent, work))

    def export(self, builder: str, *, program_file: Path | None = None, **params: Any) -> Mapping[str, ArtifactRef]:
        """The export stage on a builder, called without arguments unless `kwargs` are given."""
        source = {"builder": builder, "kwargs": params.pop("kwargs", {})}
        return self.run(Export, Export.Params(source=source, **params), program_file=program_file)

    def json(self, ref: ArtifactRef) -> Any:
        """Stored JSON."""
        return self.store.read_json(ref)

    def value(self, ref: ArtifactRef) -> Any:
        """A stored tree."""
        return load_value(ref, self.store)

    def program(self, ref: ArtifactRef) -> Any:
        """A stored program."""
        return load_program(ref, self.store)


def lower_upstream(builder: str, recipe: Mapping[str, Any]) -> Any:
    """The ExecutorchProgramManager of a builder's model, lowered with ExecuTorch's public functions alone.

    Its programs are rewritten as `export` rewrites them: what ExecuTorch lacks or mistakes is not what is compared.
    """
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
    from pteforge.tasks.programs.graphs import find_operators

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
    from pteforge.configs.model import ModelDefinition
    from pteforge.tasks.export.rewriting import rewrite

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
    programs = {
        key: torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)
        for key, (model, inputs, shapes) in methods.items()
    }
    for program in programs.values():
        rewrite(program, alone=len(programs) == 1)
    return programs, constants


def lower_directly(program: Any, target: str, **options: Any) -> bytes:
    """The file that ExecuTorch's public call makes of a program with the partitioners of a target."""
    from executorch.exir import to_edge_transform_and_lower

    partitioners = list(find_target(target, options).partitioners())
    return bytes(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer)


def lower_quantized(module: Any, x: Any, *, dynamic_shapes: Any = None, **options: Any) -> bytes:
    """The file of a network of one input, which is also what it is calibrated on, with options of the quantizer."""
    import torch
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.targets import TargetParams

    exported = torch.export.export(module, (x,), dynamic_shapes=dynamic_shapes)
    program, *_ = quantize(exported, [x], [[x]], (TargetParams(name="xnnpack", options=options),))
    return lower_directly(program, "xnnpack")


def outputs_of(content: bytes, *inputs: Any) -> Any:
    """What the method `forward` of a file returns."""
    from executorch.runtime import Runtime

    return Runtime.get().load_program(content).load_method("forward").execute(inputs)


def worst_sqnr(content: bytes, module: Any, x: Any) -> float:
    """Of all outputs of a file, against eager's, in dB."""
    import torch
    from pteforge.tasks.usercode.inputs import StoredCase
    from pteforge.tasks.verify.compare import compare_all
    from torch.utils import _pytree as pytree

    made = outputs_of(content, x)
    with torch.no_grad():
        stored = StoredCase("x", [x], pytree.tree_leaves(module(x)))
    cases = list(compare_all(made, stored, method="forward"))
    return min(math.inf if case.sqnr_db is None else case.sqnr_db for case in cases)


def program_digest(program: Any) -> Digest:
    """SHA-256 of all that matters for lowering a program; raises StoreError if something has no canonical form."""
    storages = StorageTable()
    form, contents = program_form(program, storages)
    return digest_json([form, [storages.digest(storages.storages[number]) for number in contents]])
