"""From one recipe to its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version

from ..artifacts.nfat.contents import BACKEND_ID, BYTE_ALIGNMENT
from .accuracy_plan import Evaluation
from .catalog import StageName
from .debug_plan import debug_outputs
from .edge_passes import pass_params
from .keys.versions import host_capability
from .ladder_plan import has_ladder, plan_ladder
from .method_params import check_methods, compile_params, edge_options, edge_params, targets_of
from .model import PlannedModel, PlannedRecipe, PlannedSpecialization, params_of
from .params import (
    EdgeParams,
    PackedPayload,
    PackParams,
    Params,
    PartitionParams,
    PreprocessParams,
    QuantizeParams,
    ReportParams,
    SerializeParams,
    TargetParams,
    VerifyParams,
)
from .source_params import CalibrationParams, SourceTransformParams
from .steps import Output, Steps


def plan_recipe(
    steps: Steps,
    model: PlannedModel,
    recipe: PlannedRecipe,
    exports: Mapping[str, str],
    datasets: Mapping[str, CalibrationParams],
    transforms: Mapping[str, SourceTransformParams],
    evaluation: Evaluation | None = None,
) -> Mapping[str, str]:
    """Adds the steps of one recipe.

    Args:
        steps: gets them; equal ones are there once.
        model: the model.
        recipe: the recipe.
        exports: method name to the step that exports it.
        datasets: method name to the samples that quantizers calibrate on, where they are not the examples.
        transforms: method name to what is done to its module; empty where the recipe transforms none.
        evaluation: how the file is scored, if it is.

    Returns:
        What is done to the step that does it, for example ``edge/forward`` or, in a fat file, ``compile.vulkan``.
    """
    return _RecipePlan(steps, model, recipe, exports, datasets, transforms, evaluation).add()


@dataclass
class _RecipePlan:
    steps: Steps
    model: PlannedModel
    recipe: PlannedRecipe
    exports: Mapping[str, str]
    datasets: Mapping[str, CalibrationParams]
    transforms: Mapping[str, SourceTransformParams]
    evaluation: Evaluation | None
    parts: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)

    @property
    def fat(self) -> bool:
        return self.recipe.recipe.output.form == "fat"

    @property
    def constants(self) -> Output:
        return Output(next(iter(self.exports.values())), "constants")

    def add(self) -> Mapping[str, str]:
        check_methods(self.recipe, self.exports)
        self.parts |= {step: step for step in self.exports.values()}
        self.programs = {method: self._quantize(method, export) for method, export in self.exports.items()}
        compiled = {each.name: self._compile(each) for each in self.recipe.specializations}
        file = self._serialize(compiled)
        self._prove(file)
        return self.parts

    def _add(
        self,
        stage: StageName,
        params: Params,
        inputs: Mapping[str, Output],
        *,
        method: str = "",
        payload: str = "",
        targets: tuple[TargetParams, ...] = (),
        optional: frozenset[str] = frozenset(),
    ) -> str:
        of_payload = f".{payload}" if self.fat and payload else ""
        part = f"{stage.value}/{method}" if method else stage.value
        name = f"{part}/{self.recipe.name}{of_payload}"
        step = self.steps.add(name, stage, params, inputs, (self.recipe.name,), targets, optional)
        self.parts[part + of_payload] = step
        return step

    def _transform(self, method: str, export: str) -> str:
        """Adds the step that exports a method's transformed module, if any; gives the step whose program goes on."""
        if method not in self.transforms:
            return export
        return self._add(StageName.SOURCE_TRANSFORM, self.transforms[method], {}, method=method)

    def _quantize(self, method: str, export: str) -> str:
        """Adds the step that quantizes a method, if any; gives the step whose program is lowered."""
        quantizers, transform = self.recipe.quantizers, self._transform(method, export)
        if not quantizers or not self.recipe.recipe.quantizes(method):
            return transform
        inputs = {"program": Output(transform, "program"), "examples": Output(export, "examples")}
        if method in self.datasets:
            samples = self._add(StageName.CALIBRATION, self.datasets[method], {}, method=method)
            inputs["samples"] = Output(samples, "samples")
        params = QuantizeParams(quantizers=quantizers)
        return self._add(StageName.QUANTIZE, params, inputs, method=method, targets=quantizers)

    def _compile(self, each: PlannedSpecialization) -> str:
        """Adds what leads to a payload; gives the step that makes it."""
        edges = {method: edge_params(self.recipe.recipe, each, method) for method in self.programs}
        programs = {method: Output(self._edge(each, method, edge), "program") for method, edge in edges.items()}
        delegated = {
            method: Output(self._partition(each, method, edges, programs), "program")
            for method in programs
            if each.target_of(method).delegates
        }
        linked = {**_roles("program", {**programs, **delegated}), "constants": self.constants}
        if delegated:
            targets = targets_of(each, self.programs)
            preprocess = PreprocessParams(targets=targets)
            partitioned = _roles("program", delegated)
            step = self._add(StageName.PREPROCESS, preprocess, partitioned, payload=each.name, targets=targets)
            linked["delegates"] = Output(step, "delegates")
        if self.recipe.recipe.compiling.generate_etrecord:
            linked |= _roles("edge", programs)
        compiling = compile_params(self.recipe.recipe, each, edges)
        return self._add(StageName.COMPILE, compiling, linked, payload=each.name)

    def _edge(self, each: PlannedSpecialization, method: str, edge: EdgeParams) -> str:
        taking_part = (params_of(each.target_of(method)),) if edge.preserve_for or edge.passes_of else ()
        if passes := edge_options(self.recipe.recipe, each, method).passes:
            edge = edge.model_copy(update={"passes": pass_params(passes, self.model, method)})
        inputs = {"program": Output(self.programs[method], "program")}
        return self._add(StageName.EDGE, edge, inputs, method=method, payload=each.name, targets=taking_part)

    def _partition(
        self, each: PlannedSpecialization, method: str, edges: Mapping[str, EdgeParams], programs: Mapping[str, Output]
    ) -> str:
        target = params_of(each.target_of(method))
        inputs = {"program": programs[method]}
        if self.recipe.recipe.compile.share_mutable_buffers:
            others = (other for other in edges if other != method)
            inputs |= {f"state/{other}": Output(programs[other].step, "state") for other in others}
        params = PartitionParams(target=target, edge=edges[method])
        return self._add(StageName.PARTITION, params, inputs, method=method, payload=each.name, targets=(target,))

    def _serialize(self, compiled: Mapping[str, str]) -> Mapping[str, Output]:
        """Adds what makes the file of the payloads that these steps compile; gives its artifacts by role."""
        methods, fallback = tuple(self.exports), self.recipe.specializations[-1]
        payloads = {name: Output(step, "payload") for name, step in compiled.items()}
        inputs = {"payload": payloads[fallback.name]}
        external = self.recipe.recipe.output.external_data
        if self.fat:
            inputs["container"] = Output(self._pack(payloads), "container")
        elif external:
            inputs["data"] = Output(compiled[fallback.name], "data")
        params = SerializeParams(
            form=self.recipe.recipe.output.form,
            methods=methods,
            backends=(BACKEND_ID,) if self.fat else fallback.backends,
            external_data=external,
        )
        step = self._add(StageName.SERIALIZE, params, inputs)
        return {role: Output(step, role) for role in ("file", *(["data"] if external else []))}

    def _pack(self, payloads: Mapping[str, Output]) -> str:
        """Adds the step that makes the container of a fat file."""
        described = [PackedPayload(name=each.name, backends=each.backends) for each in self.recipe.specializations]
        packing = PackParams(
            payloads=tuple(described),
            methods=tuple(self.exports),
            alignment=max(BYTE_ALIGNMENT, self.recipe.recipe.compile.segment_alignment),
            executorch_version=_executorch_version(),
        )
        optional = frozenset(f"payload/{each.name}" for each in self.recipe.specializations if not each.required)
        inputs = {f"payload/{name}": payload for name, payload in payloads.items()}
        return self._add(StageName.PACK, packing, inputs, optional=optional)

    def _prove(self, file: Mapping[str, Output]) -> None:
        recipe = self.recipe
        examples = {f"examples/{method}": Output(export, "examples") for method, export in self.exports.items()}
        numerics = {"numerics": Output(self._ladder(), "numerics")} if has_ladder(recipe, self.parts) else {}
        verifying = VerifyParams(bounds=recipe.bounds, host=host_capability())
        verify = self._add(StageName.VERIFY, verifying, {**file, **examples, "constants": self.constants})
        reporting = ReportParams(
            model=self.model.name,
            recipe=recipe.name,
            specializations={each.name: each.target_params for each in recipe.specializations},
            left_out=tuple(recipe.unavailable),
            stage_keys={},
            versions=recipe.versions,
            bounds=recipe.bounds,
        )
        proofs = {"figures": Output(verify, "figures"), **self._score(file), **numerics}
        debugging = debug_outputs(recipe, self.parts)
        inputs = {**file, **proofs, **examples, **debugging}
        self._add(StageName.REPORT, reporting, inputs, optional=frozenset([*numerics, *debugging]))

    def _ladder(self) -> str:
        """Adds the step that compares all programs with eager, whatever verification says."""
        ladder = plan_ladder(self.recipe, self.exports, self.parts)
        return self._add(StageName.LADDER, ladder.params, ladder.inputs, optional=ladder.optional)

    def _score(self, file: Mapping[str, Output]) -> Mapping[str, Output]:
        """Adds what scores the file and holds the score against its bounds, if anything; gives what that says."""
        if self.evaluation is None:
            return {}
        inputs = {"scores": Output(self._add(StageName.EVALUATE, self.evaluation.evaluate, file), "scores")}
        if self.evaluation.baseline:
            inputs["baseline"] = Output(self._add(StageName.BASELINE, self.evaluation.baseline, {}), "scores")
        return {"accuracy": Output(self._add(StageName.GATE, self.evaluation.gate, inputs), "accuracy")}


def _roles(kind: str, by_method: Mapping[str, Output]) -> dict[str, Output]:
    """Inputs of a stage that come one for each method."""
    return {f"{kind}/{method}": output for method, output in by_method.items()}


@cache
def _executorch_version() -> str:
    return version("executorch")
