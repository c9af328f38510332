"""A checked model, ready to be lowered: its source, its recipes and their targets."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Self

from ...artifacts.digest import canonical_json
from ...configs.model import Limits, ModelConfig
from ...configs.quantize import QuantizationSearch
from ...configs.recipe import EdgeOptions, MethodOptions, Recipe
from ...configs.sources import BuilderSource, Dataset, ProgramSource, ResolvedSource
from ...configs.verification import AccuracyGate, VerifyBounds
from ...errors import SourceError
from ..engine.keys.search import distribution_versions
from ..results.numerics import FoundLayers
from ..targets import Target, TargetParams
from ..targets.find import find_target_class
from ..targets.portable import Portable

TOOLCHAIN = ("pteforge", "torch", "executorch", "torchao")


@dataclass(frozen=True)
class PlannedSpecialization:
    """One backend of a recipe, with its targets and checked options."""

    name: str
    target: Target  # the target of methods that have no other
    required: bool = True
    method_targets: Mapping[str, Target] = field(default_factory=dict)  # method name to another target
    methods: Mapping[str, MethodOptions] = field(default_factory=dict)  # method name to other options

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.target, *self.method_targets.values()

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(backend for target in self.targets for backend in target.backends))

    def target_of(self, method: str) -> Target:
        if method in self.methods and not self.methods[method].delegate:
            return Portable(Portable.Options())
        return self.method_targets.get(method, self.target)

    def delegating(self, methods: Iterable[str]) -> tuple[TargetParams, ...]:
        """The targets that delegate parts of these methods, without repeats."""
        targets = [target for method in methods if (target := self.target_of(method)).delegates]
        params = [params_of(target) for target in targets]
        return tuple(made for position, made in enumerate(params) if made not in params[:position])


def params_of(target: Target) -> TargetParams:
    return TargetParams(name=target.name, options=target.options.model_dump(mode="json"))


@dataclass(frozen=True)
class PlannedRecipe:
    """A checked recipe of a model, with its targets."""

    name: str
    recipe: Recipe
    specializations: tuple[PlannedSpecialization, ...]  # by preference; exactly one for the plain form
    bounds: VerifyBounds  # the recipe's verification bounds, overridden by the model's
    # the targets that quantize, with their quantizers' options; empty without quantization
    quantizers: tuple[TargetParams, ...] = ()
    # name of an optional specialization that this machine cannot lower -> reason
    unavailable: Mapping[str, str] = field(default_factory=dict)
    # the evaluator that scores the file, and its bounds; None if the file is not scored
    gate: AccuracyGate | None = None
    until: str | None = None  # name of the last stage to run; None to make the file
    found: FoundLayers | None = None  # what the search for layers to leave in floating point has found

    @property
    def fat(self) -> bool:
        return self.recipe.output.form == "fat"

    @property
    def debugs(self) -> bool:
        return self.recipe.compile_options.generate_etrecord

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the distributions that lower it."""
        targets = [type(target) for spec in self.specializations for target in spec.targets]
        targets += [find_target_class(quantizer.name) for quantizer in self.quantizers]
        return distribution_versions((*TOOLCHAIN, *(name for target in targets for name in target.distributions)))

    @property
    def may_be_unverified(self) -> bool:
        """Whether the file is made even if nothing here runs it."""
        return not (self.recipe.verify.required or self.fat)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Patterns of the modules that quantizers leave in floating point."""
        return self.recipe.quantize.exclude if self.recipe.quantize else ()

    @property
    def search(self) -> QuantizationSearch | None:
        return self.recipe.quantize.search if self.recipe.quantize else None

    def without(self, layers: Sequence[str]) -> PlannedRecipe:
        """The recipe with these layers in floating point as well."""
        quantize = self.recipe.quantize
        assert quantize  # noqa: S101 - of a recipe with a search
        quantize = quantize.model_copy(update={"exclude": (*quantize.exclude, *map(escape, layers))})
        return replace(self, recipe=self.recipe.model_copy(update={"quantize": quantize}))

    def with_computed_scales(self) -> PlannedRecipe | None:
        """The recipe with scales of activations that the file computes; None where its quantizer has no such option."""
        if len(self.quantizers) != 1 or self.quantizers[0].options.get("dynamic") is not False:
            return None
        (quantizer,) = self.quantizers
        computed = quantizer.model_copy(update={"options": {**quantizer.options, "dynamic": True}})
        return replace(self, quantizers=(computed,))

    def quantizes(self, method: str) -> bool:
        return bool(self.quantizers) and self.recipe.quantizes(method)

    def observes_any_batch(self, method: str) -> bool:
        """Whether the method is exported for samples of any batch size, for quantizers to observe."""
        return self.quantizes(method) and bool(self.recipe.quantize and self.recipe.quantize.dynamic_batch_size)

    def calibrates(self, method: str) -> bool:
        """Whether activations of the method get fixed ranges from what quantizers observe."""
        at_run_time = all(made.options.get("dynamic") or made.options.get("weight_only") for made in self.quantizers)
        return self.quantizes(method) and not at_run_time

    def calibrated_on_examples(self, methods: Iterable[str], calibration: Container[str]) -> list[str]:
        """The methods whose activations get fixed ranges from the example inputs, for want of calibration data."""
        return [method for method in methods if self.calibrates(method) and method not in calibration]

    @property
    def asks_for_drawn_inputs(self) -> bool:
        """Whether the recipe or the model says how many random inputs to try."""
        written = self.recipe.verify
        return "drawn_inputs" in written.model_fields_set or self.bounds.drawn_inputs != written.drawn_inputs

    def edge_options(self, spec: PlannedSpecialization, method: str) -> EdgeOptions:
        own = spec.methods.get(method)
        return (own and own.edge) or self.recipe.edge

    def check_methods(self, methods: Iterable[str]) -> None:
        """Raises SourceError if the recipe names a method that the model does not have."""
        known = list(methods)
        quantize = self.recipe.quantize
        if unknown := sorted(set(quantize.methods or ()) - set(known)) if quantize else []:
            raise SourceError(
                f"`quantize.methods` of recipe {self.name!r} names the methods {unknown}; the model has {known}"
            )
        for spec in self.specializations:
            if unknown := sorted(set(spec.methods) - set(known)):
                raise SourceError(
                    f"specialization {spec.name!r} of recipe {self.name!r} names the methods {unknown}; "
                    f"the model has {known}"
                )


@dataclass(frozen=True)
class PlannedModel:
    """A model with the selected recipes."""

    name: str
    recipes: tuple[PlannedRecipe, ...]
    # how many random inputs `export` makes: the maximum over all of the model's recipes in the zoo, so that it does not
    # depend on which are selected
    random_inputs: int
    source: ResolvedSource | None  # where it comes from; None for a model in the caller's memory
    # method name to the dataset that quantizers calibrate on; None for samples in the caller's memory
    calibration: Mapping[str, Dataset | None] = field(default_factory=dict)
    # name of a selected recipe that does not apply to the model -> reason
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0  # seeds torch, numpy and random before the user's code runs
    strict: bool = False
    dynamic_shapes: Any = None  # the zoo file's, as JSON; they replace the builder's
    limits: Limits = field(default_factory=Limits)
    python_path: tuple[Path, ...] = ()  # folders in which the source's modules are found
    folder: Path = field(default_factory=Path.cwd)
    # what the zoo says about the model, as it was written (`configs.Metadata.written`); None if it says nothing
    metadata: Mapping[str, Any] | None = None

    @classmethod
    def of_config(
        cls,
        name: str,
        config: ModelConfig,
        recipes: tuple[PlannedRecipe, ...],
        random_inputs: int,
        *,
        source: ResolvedSource,
        not_applicable: Mapping[str, str] | None = None,
        python_path: tuple[Path, ...],
        folder: Path,
    ) -> Self:
        return cls(
            name=name,
            recipes=recipes,
            random_inputs=random_inputs,
            source=source,
            calibration=config.calibration or {},
            not_applicable=not_applicable or {},
            seed=config.seed,
            strict=config.strict,
            dynamic_shapes=config.model_dump(mode="json")["dynamic_shapes"],
            limits=config.limits,
            python_path=python_path,
            folder=folder,
            metadata=config.metadata.written() if config.metadata else None,
        )

    def ending_with(self, stage: str) -> Self:
        """The model, lowered no further than a stage."""
        return replace(self, recipes=tuple(replace(recipe, until=stage) for recipe in self.recipes))

    def for_debugging(self) -> Self:
        return replace(self, recipes=tuple(map(for_debugging, self.recipes)))

    @property
    def program_file(self) -> Path | None:
        return Path(self.source.program) if isinstance(self.source, ProgramSource) else None

    def watch_name(self, method: str | None) -> str:
        """The name of a method's export in the ledger's watch lists.

        A builder may load other modules with other arguments or for another method. One list for all would grow with
        each, and change the keys of finished exports. `method` is None for the model's first one.
        """
        match self.source:
            case BuilderSource(builder=builder, kwargs=arguments):
                return canonical_json([builder, arguments, method]).decode()
            case _:
                return canonical_json([f"program:{self.name}", {}, method]).decode()


def for_debugging(recipe: PlannedRecipe) -> PlannedRecipe:
    return replace(recipe, recipe=recipe.recipe.model_copy(update={"debug": True}))
