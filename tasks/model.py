"""A model that has been checked and is ready to be planned: its source, its recipes, their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ..artifacts.digest import canonical_json
from ..configs.accuracy import AccuracyGate
from ..configs.methods import MethodOptions
from ..configs.model import Limits, ModelConfig
from ..configs.recipe import Recipe
from ..configs.sources import BuilderSource, ProgramSource
from ..configs.verify_bounds import VerifyBounds
from .catalog import StageName
from .keys.search import ModuleSearch
from .keys.source import source_fields
from .keys.versions import distribution_versions, host_capability
from .params import TargetParams
from .source_params import CalibrationParams, ExportParams
from .targets import Target
from .targets.find import find_target_class
from .targets.portable import Portable

TOOLCHAIN = ("pteforge", "torch", "executorch", "torchao")


@dataclass(frozen=True)
class PlannedSpecialization:
    """One backend of a recipe, with its target made.

    Attributes:
        name: name of the payload, unique in the recipe.
        target: the target, options checked.
        required: whether the recipe fails without it.
        method_targets: by method name, another target than that, options checked.
        methods: by method name, what else differs for it.
    """

    name: str
    target: Target
    required: bool = True
    method_targets: Mapping[str, Target] = field(default_factory=dict)
    methods: Mapping[str, MethodOptions] = field(default_factory=dict)

    @property
    def target_params(self) -> TargetParams:
        """The target as stage params."""
        return params_of(self.target)

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets that take part."""
        return self.target, *self.method_targets.values()

    @property
    def backends(self) -> tuple[str, ...]:
        """The runtime backends that the payload may need."""
        return tuple(dict.fromkeys(backend for target in self.targets for backend in target.backends))

    def target_of(self, method: str) -> Target:
        """The target whose partitioners see a method."""
        if method in self.methods and not self.methods[method].delegate:
            return Portable(Portable.Options())
        return self.method_targets.get(method, self.target)


def params_of(target: Target) -> TargetParams:
    """A target as stage params."""
    return TargetParams(name=target.name, options=target.options.model_dump(mode="json"))


@dataclass(frozen=True)
class PlannedRecipe:
    """A recipe of a model, with its targets made.

    Attributes:
        name: name of the recipe.
        recipe: the recipe.
        specializations: what to lower to, by preference; exactly one for the plain form.
        bounds: the recipe's verification bounds with the model's own in front.
        quantizers: the targets that quantize, with their quantizers' options; empty where nothing is quantized.
        unavailable: names of specializations that this machine cannot lower and that are not required: why, by name.
        gate: what scores the file, with its bounds; None where it is not scored.
        until: the last stage to go through; None where the file is to be made.
    """

    name: str
    recipe: Recipe
    specializations: tuple[PlannedSpecialization, ...]
    bounds: VerifyBounds
    quantizers: tuple[TargetParams, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    gate: AccuracyGate | None = None
    until: StageName | None = None

    def for_debugging(self) -> Self:
        """The same, but in debug mode."""
        return replace(self, recipe=self.recipe.model_copy(update={"debug": True}))

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what lowers it."""
        targets = [type(target) for each in self.specializations for target in each.targets]
        targets += [find_target_class(each.name) for each in self.quantizers]
        return distribution_versions((*TOOLCHAIN, *(name for target in targets for name in target.distributions)))


@dataclass(frozen=True)
class PlannedModel:
    """A model of a zoo with the recipes that are asked for.

    Attributes:
        name: name of the model.
        config: its configuration.
        recipes: what to make of it.
        not_applicable: recipes that are asked for and do not apply to it: why, by name.
        drawn_inputs: how many inputs `export` draws; the most that any of the zoo's recipes for it verifies with,
            so that asking for some recipes only does not change it.
        python_path: folders in which the source's modules are found.
        folder: the zoo file's folder.
    """

    name: str
    config: ModelConfig
    recipes: tuple[PlannedRecipe, ...]
    drawn_inputs: int
    python_path: tuple[Path, ...]
    folder: Path
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    def ending_with(self, stage: StageName) -> Self:
        """The same, but going no further than a stage."""
        return replace(self, recipes=tuple(replace(recipe, until=stage) for recipe in self.recipes))

    def for_debugging(self) -> Self:
        """The same, but with every recipe in debug mode."""
        return replace(self, recipes=tuple(recipe.for_debugging() for recipe in self.recipes))

    @property
    def limits(self) -> Limits:
        """Time and memory of each of its stages."""
        return self.config.limits

    @property
    def program_file(self) -> Path | None:
        """The `.pt2` file, where the model is one."""
        source = self.config.source
        return Path(source.program) if isinstance(source, ProgramSource) else None

    def watch_name(self, method: str | None) -> str:
        """What the export of a method is called in the ledger's watch lists.

        A builder may load other modules with other arguments or for another method. One list for all of them would
        grow with each, and with it the keys of those that are finished.

        Args:
            method: None for the model's first one.
        """
        source = self.config.source
        name = f"program:{self.name}" if isinstance(source, ProgramSource) else source.builder
        arguments = {} if isinstance(source, ProgramSource) else source.kwargs
        return canonical_json([name, arguments, method]).decode()

    def calibration_params(self) -> Mapping[str, CalibrationParams]:
        """Params of `calibration`, by method, of those that have a dataset."""
        search = ModuleSearch(self.python_path)
        return {
            method: CalibrationParams(
                source=source_fields(
                    BuilderSource(builder=each.dataset, kwargs=each.kwargs, files=each.files),
                    search,
                    folder=self.folder,
                ),
                seed=self.config.seed,
                samples=each.samples,
            )
            for method, each in (self.config.calibration or {}).items()
        }

    def eager_source(self, exporting: ExportParams) -> Mapping[str, Any]:
        """What says which model eager's score is of, from the params that its first method is exported with."""
        return exporting.source

    def export_params(self, method: str | None, watched: tuple[str, ...]) -> ExportParams:
        """Params of `export`.

        Args:
            method: None for the model's first one.
            watched: modules that earlier runs loaded and the static closure does not see.
        """
        config = self.config
        shapes: Mapping[str, Any] | None = config.model_dump(mode="json")["dynamic_shapes"]
        return ExportParams(
            source=source_fields(config.source, ModuleSearch(self.python_path), watched, folder=self.folder),
            method=method,
            seed=config.seed,
            strict=config.strict,
            dynamic_shapes=shapes,
            drawn_inputs=self.drawn_inputs,
            host=host_capability(),
        )
