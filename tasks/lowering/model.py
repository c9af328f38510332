"""A checked model, ready to be lowered: its source, its recipes and their targets; and all checks without torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import product
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import JsonValue

from ...artifacts.digest import canonical_json
from ...configs.contract_file import RELEASE, Runtime, read_contract
from ...configs.model import Limits, MethodConfig, ModelOptions
from ...configs.nodes import FieldPath
from ...configs.problems import raise_all
from ...configs.quantize import CallableTransform, QuantizationSearch, QuantizationVariant, TorchaoTransform
from ...configs.recipe import EdgeOptions, MethodOptions, Recipe, Specialization
from ...configs.sources import BuilderSource, Dataset, NamedFunction, ProgramSource, ResolvedSource
from ...configs.verification import ERROR_BOUNDS, AccuracyGate, VerifyBounds
from ...errors import ConfigError, InputError, SourceError, TargetError
from ...formats.contract import ANY_KERNEL, ANY_PRIM, check_release, is_prim
from ...formats.pte.buckets import Bucket
from ..engine.keys.builder import find_builder, find_signature
from ..engine.keys.search import ModuleSearch, distribution_versions
from ..quantize.torchao_configs import check_transform, class_name
from ..results.accuracy import FoundQuantization
from ..targets import Target, TargetParams
from ..targets.find import check_quantizers, find_target, find_target_class
from ..targets.portable import Portable
from ..verify.places import PlannedPlace

T = TypeVar("T")

_OF_FIXED_SCALES = ("ranges", "percentile", "symmetric")  # options of quantizers

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
        return tuple(target for position, target in enumerate(params) if target not in params[:position])


def params_of(target: Target) -> TargetParams:
    return TargetParams(name=target.name, options=target.options.model_dump(mode="json"))


@dataclass(frozen=True)
class PlannedRecipe:
    """A checked recipe of a model, with its targets."""

    name: str
    recipe: Recipe
    specializations: tuple[PlannedSpecialization, ...]  # by preference; exactly one for the plain form
    bounds: VerifyBounds  # the recipe's verification bounds, overridden by the model's
    quantizers: tuple[TargetParams, ...] = ()  # targets with their quantizers' options; empty without quantization
    unavailable: Mapping[str, str] = field(default_factory=dict)  # optional specialization -> why it cannot be lowered
    gate: AccuracyGate | None = None  # the evaluator that scores the file, and its bounds; None if it is not scored
    places: tuple[PlannedPlace, ...] = ()  # where payloads are run besides this machine's runtime
    until: str | None = None  # name of the last stage to run; None to make the file
    runtime: Runtime | None = None  # that has to be able to load the file
    found: FoundQuantization | None = None  # how to quantize, after a search for it

    @property
    def payloads(self) -> list[str]:
        return [spec.name for spec in self.specializations]

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

    def varied(self, variant: QuantizationVariant) -> PlannedRecipe:
        """The recipe with a variant that its search tries; raises TargetError if a quantizer refuses it."""
        assert self.recipe.quantize  # noqa: S101 - of a recipe with a search
        quantize = self.recipe.quantize.varied(variant)
        recipe = self.recipe.model_copy(update={"quantize": quantize})
        return replace(self, recipe=recipe, quantizers=check_quantizers(quantize))

    def with_computed_scales(self) -> PlannedRecipe | None:
        """The recipe with scales of activations that the file computes; None if its quantizer has no option for it."""
        if [quantizer.options.get("dynamic") for quantizer in self.quantizers] != [False]:
            return None
        (quantizer,) = self.quantizers
        options = {name: value for name, value in quantizer.options.items() if name not in _OF_FIXED_SCALES}
        computed = quantizer.model_copy(update={"options": {**options, "dynamic": True}})
        return replace(self, quantizers=(computed,))

    def for_debugging(self) -> PlannedRecipe:
        return replace(self, recipe=self.recipe.model_copy(update={"debug": True}))

    def quantizes(self, method: str) -> bool:
        return bool(self.quantizers) and self.recipe.quantizes(method)

    def observes_any_batch(self, method: str) -> bool:
        """Whether the method is exported for samples of any batch size, for quantizers to observe."""
        return self.quantizes(method) and bool(self.recipe.quantize and self.recipe.quantize.dynamic_batch_size)

    def calibrates(self, method: str) -> bool:
        """Whether activations of the method get fixed ranges from what quantizers observe."""
        options = [quantizer.options for quantizer in self.quantizers]
        return self.quantizes(method) and not all(each.get("dynamic") or each.get("weight_only") for each in options)

    @property
    def asks_for_drawn_inputs(self) -> bool:
        """Whether the recipe or the model says how many random inputs to try."""
        written = self.recipe.verify
        return "drawn_inputs" in written.model_fields_set or self.bounds.drawn_inputs != written.drawn_inputs

    def edge_options(self, spec: PlannedSpecialization, method: str) -> EdgeOptions:
        options = spec.methods.get(method)
        return (options and options.edge) or self.recipe.edge

    def for_buckets(self, buckets: Sequence[Bucket]) -> PlannedRecipe:
        """The recipe, whose settings for a method are those of each of its buckets."""
        specializations = []
        for spec in self.specializations:
            targets, methods = by_bucket(spec.method_targets, buckets), by_bucket(spec.methods, buckets)
            specializations.append(replace(spec, method_targets=targets, methods=methods))
        recipe, quantize = self.recipe, self.recipe.quantize
        if quantize and quantize.methods:
            names = tuple(by_bucket(dict.fromkeys(quantize.methods), buckets))
            recipe = recipe.model_copy(update={"quantize": quantize.model_copy(update={"methods": names})})
        return replace(self, recipe=recipe, specializations=tuple(specializations))

    def check_methods(self, methods: Iterable[str]) -> None:
        """Raises SourceError if the recipe names a method that the model does not have."""
        known, quantize = list(methods), self.recipe.quantize
        named: dict[str, Iterable[str]] = {"`quantize.methods`": (quantize and quantize.methods) or ()}
        named |= {f"specialization {spec.name!r}": spec.methods for spec in self.specializations}
        for what, names in named.items():
            if unknown := sorted(set(names) - set(known)):
                raise SourceError(f"{what} of recipe {self.name!r} names the methods {unknown}; the model has {known}")


def plan_buckets(method: str, config: MethodConfig) -> list[Bucket]:
    """The buckets of a method, which are named after it and their sizes."""
    buckets = []
    for sizes in product(*config.buckets.values()) if config.buckets else ():
        name = "_".join(map(str, (method, *sizes)))
        buckets.append(Bucket(name=name, method=method, sizes=dict(zip(config.buckets, sizes, strict=True))))
    return buckets


def by_bucket(values: Mapping[str, T], buckets: Sequence[Bucket]) -> dict[str, T]:
    """Values by the file's methods: a method's value is that of its buckets, except for those with one of their own."""
    bucketed = {bucket.method for bucket in buckets}
    of_buckets = {bucket.name: values[bucket.method] for bucket in buckets if bucket.method in values}
    return of_buckets | {method: value for method, value in values.items() if method not in bucketed}


@dataclass(frozen=True)
class PlannedModel:
    """A model with the selected recipes."""

    name: str
    recipes: tuple[PlannedRecipe, ...]
    random_inputs: int  # that `export` makes: the most of all of the model's recipes in the zoo, selected or not
    source: ResolvedSource | None  # where it comes from; None for a model in the caller's memory
    # method name to the dataset that quantizers calibrate on; None for samples in the caller's memory
    calibration: Mapping[str, Dataset | None] = field(default_factory=dict)
    not_applicable: Mapping[str, str] = field(default_factory=dict)  # selected recipe -> why it does not apply
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # selected recipe -> the other toolchain that lowers it
    seed: int = 0  # seeds torch, numpy and random before the user's code runs
    strict: bool = False
    dynamic_shapes: Any = None  # the zoo file's, as JSON; they replace the builder's
    buckets: tuple[Bucket, ...] = ()
    limits: Limits = field(default_factory=Limits)
    python_path: tuple[Path, ...] = ()  # folders in which the source's modules are found
    folder: Path = field(default_factory=Path.cwd)
    # what the zoo says about the model, as it was written (`configs.metadata.Metadata`); None if it says nothing
    metadata: Mapping[str, Any] | None = None

    @classmethod
    def of_config(
        cls,
        name: str,
        config: ModelOptions,
        recipes: tuple[PlannedRecipe, ...],
        random_inputs: int,
        *,
        source: ResolvedSource | None,
        not_applicable: Mapping[str, str] | None = None,
        python_path: tuple[Path, ...] = (),
        folder: Path,
    ) -> Self:
        buckets = tuple(bucket for method, own in config.methods.items() for bucket in plan_buckets(method, own))
        return cls(
            name=name,
            recipes=tuple(recipe.for_buckets(buckets) for recipe in recipes),
            buckets=buckets,
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

    def check_methods(self, own: Collection[str]) -> None:
        """Raises SourceError if a field of the zoo names a method that the model does not have."""
        bucketed = {bucket.method for bucket in self.buckets}
        for what, named in ("buckets are of", bucketed), ("dynamic_shapes names", {*(self.dynamic_shapes or ())}):
            if unknown := sorted(named - set(own)):
                raise SourceError(f"{what} the methods {unknown}; the model has {[*own]}")
        names = self.methods_in_file(own)
        if unknown := sorted(set(self.calibration) - set(names)):
            raise SourceError(f"calibration names the methods {unknown}; the model has {names}")

    def methods_in_file(self, own: Iterable[str]) -> list[str]:
        """The methods of the file, from those of the model; raises SourceError if two have one name."""
        bucketed: dict[str, list[str]] = {}
        for bucket in self.buckets:
            bucketed.setdefault(bucket.method, []).append(bucket.name)
        names = [name for method in own for name in bucketed.get(method, [method])]
        if twice := [name for position, name in enumerate(names) if name in names[:position]]:
            raise SourceError(f"two methods would be called {twice[0]!r}: a bucket is named after its method and sizes")
        return names

    def bucket(self, method: str | None) -> Bucket | None:
        """The bucket that a method of the file is; None if it is none."""
        return next((bucket for bucket in self.buckets if bucket.name == method), None)

    def ending_with(self, stage: str) -> Self:
        """The model, lowered no further than a stage."""
        return replace(self, recipes=tuple(replace(recipe, until=stage) for recipe in self.recipes))

    def for_debugging(self) -> Self:
        return replace(self, recipes=tuple(recipe.for_debugging() for recipe in self.recipes))

    @property
    def program_file(self) -> Path | None:
        return Path(self.source.program) if isinstance(self.source, ProgramSource) else None

    def watch_name(self, method: str | None) -> str:
        """The name of a method's export in the ledger's watch lists.

        A builder may load other modules with other arguments or for another method: one list for all would grow with
        each, and change the keys of finished exports. `method` is None for the model's first one.
        """
        if isinstance(self.source, BuilderSource):
            return canonical_json([self.source.builder, self.source.kwargs, method]).decode()
        return canonical_json([f"program:{self.name}", {}, method]).decode()


ErrorAt = Callable[[str, FieldPath], ConfigError]  # from a problem and the path of the field within the recipe


def plan_recipe(
    name: str,
    recipe: Recipe,
    bounds: VerifyBounds,
    finder: ModuleSearch,
    error_at: ErrorAt,
    gate: AccuracyGate | None = None,
    *,
    bounded: bool = True,
) -> PlannedRecipe:
    """Checks a recipe and makes its targets; raises InputError.

    If the user has not chosen the bounds (`bounded`), the gate alone decides about files with other numerics.
    """
    _check_source_transforms(recipe, finder, error_at)
    _check_functions(recipe, finder, error_at)
    planned, unavailable, errors = [], {}, []
    for position, specialization in enumerate(recipe.specializations):
        spec = _find_specialization(specialization, ("specializations", position), error_at)
        missing = list(_missing(spec))
        if missing and specialization.required:
            errors += [error_at(reason, ("specializations", position, *field)) for field, reason in missing]
        elif missing:
            unavailable[specialization.payload] = missing[0][1].partition(" is ")[2]
        else:
            planned.append(spec)
    raise_all(errors)
    if recipe.output.form == "fat" and planned[-1].backends:
        raise error_at(
            f"{planned[-1].name!r} needs {', '.join(planned[-1].backends)}: the last specialization of a fat "
            "file is what every device falls back to, so it must need no backend; add `- target: portable`",
            ("specializations",),
        )
    with errors_at(error_at, ("quantize",)):
        quantizers = check_quantizers(recipe.quantize)
    if recipe.quantize and recipe.quantize.search:
        for position, variant in enumerate(recipe.quantize.search.variants):
            with errors_at(error_at, ("quantize", "search", "variants", position, "options")):
                check_quantizers(recipe.quantize.varied(variant))
        if recipe.quantize.search.evaluator_kwargs and not gate:
            raise error_at(
                "there is no evaluator to take these arguments: give the model or the recipe an `accuracy` gate",
                ("quantize", "search", "evaluator_kwargs"),
            )
    if gate and not bounded and (recipe.quantize or recipe.transforms):
        bounds = bounds.model_copy(update=dict.fromkeys(ERROR_BOUNDS))
    try:
        runtime = find_runtime(recipe.verify.runtime) if recipe.verify.runtime else None
    except InputError as error:
        raise error_at(str(error), ("verify", "runtime")) from error
    return PlannedRecipe(name, recipe, tuple(planned), bounds, quantizers, unavailable, gate, runtime=runtime)


def find_runtime(text: str) -> Runtime:
    """The runtime that a release of ExecuTorch or the path of a contract file stands for; raises InputError."""
    if RELEASE.fullmatch(text):
        return Runtime(name=text, release=check_release(text))
    runtime = read_contract(Path(text))
    if runtime.backends is not None or runtime.operators is None or any(map(is_prim, runtime.operators)):
        return runtime
    # a selective build of other libraries leaves ExecuTorch's own operators as they are
    return runtime.model_copy(update={"operators": {**runtime.operators, ANY_PRIM: (ANY_KERNEL,)}})


def torchao_calls(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    """Class name and fields of each torchao config in a recipe, to check their values with torch."""
    for transform in recipe.transforms:
        if isinstance(transform, TorchaoTransform):
            yield class_name(transform.torchao), transform.params


@contextmanager
def errors_at(error_at: ErrorAt, where: FieldPath) -> Iterator[None]:
    """Adds the position of a field to errors about its value."""
    try:
        yield
    except (SourceError, TargetError, ValueError) as error:
        raise error_at(str(error), where) from error


def check_callable(
    builder: str,
    kwargs: Mapping[str, JsonValue],
    finder: ModuleSearch,
    error_at: ErrorAt,
    where: FieldPath,
    named: str = "",
    *,
    given: int = 0,
) -> None:
    """Raises InputError unless a callable exists and takes its arguments, as far as its source shows.

    `where` is the mapping with its `kwargs`, and its name in the field `named`; `given` arguments come before them.
    """
    with errors_at(error_at, (*where, named) if named else where):
        find_builder(builder, finder)
    if (signature := find_signature(builder, finder)) is None:
        return
    raise_all(
        error_at(problem, (*where, "kwargs", name) if name else (*where, "kwargs"))
        for name, problem in signature.problems(builder, kwargs, given)
    )


def check_files(files: Iterable[Path], error_at: ErrorAt, where: FieldPath) -> None:
    """Raises an error at the position of a file or folder that does not exist; `where` is the field of all of them."""
    for position, file in enumerate(files):
        if not (file.is_file() or file.is_dir()):
            raise error_at(f"there is no file {file}", (*where, position))


def _check_source_transforms(recipe: Recipe, finder: ModuleSearch, error_at: ErrorAt) -> None:
    for position, transform in enumerate(recipe.transforms):
        where = "source_transforms", position
        if isinstance(transform, TorchaoTransform):
            with errors_at(error_at, where):
                check_transform(transform)
            if transform.filter_fn:
                check_callable(transform.filter_fn, {}, finder, error_at, where, "filter_fn", given=2)
        elif isinstance(transform, CallableTransform):
            check_callable(transform.callable, transform.kwargs, finder, error_at, where, given=1)
            check_files(transform.files, error_at, (*where, "files"))


def _check_functions(recipe: Recipe, finder: ModuleSearch, error_at: ErrorAt) -> None:
    for position, chosen in enumerate(recipe.quantize.quantizers if recipe.quantize else ()):
        if chosen.filter_fn:
            quantizer = "quantize", "quantizers", position
            check_callable(chosen.filter_fn, {}, finder, error_at, quantizer, "filter_fn", given=1)
    for where, function, given in _passes(recipe):
        check_callable(function.callable, function.kwargs, finder, error_at, where, "callable", given=given)


def _passes(recipe: Recipe) -> Iterator[tuple[FieldPath, NamedFunction, int]]:
    """A recipe's own functions: field, function, and the number of its positional arguments."""
    for position, aten_pass in enumerate(recipe.aten_passes):
        yield ("aten_passes", position), aten_pass, 2
    for position, manager_pass in enumerate(recipe.edge_manager_passes):
        yield ("edge_manager_passes", position), manager_pass, 2 if manager_pass.takes_program else 1
    for position, emission_pass in enumerate(recipe.emission_passes):
        yield ("emission_passes", position), emission_pass, 1 if emission_pass.takes_module else 0
    for step, passes in (recipe.quantize.passes if recipe.quantize else {}).items():
        for position, graph_pass in enumerate(passes):
            yield ("quantize", step, position), graph_pass, 1
    for where, edge in recipe.edges.items():
        for position, edge_pass in enumerate(edge.passes):
            yield (*where, "passes", position), edge_pass, 2 if edge_pass.takes_program else 0


def _find_specialization(specialization: Specialization, where: FieldPath, error_at: ErrorAt) -> PlannedSpecialization:
    def find(name: str, options: Mapping[str, JsonValue], field: FieldPath) -> Target:
        with errors_at(error_at, (*where, *field)):
            return find_target(name, dict(options))

    others = {}
    for method, own in specialization.methods.items():
        if own.target not in (None, specialization.target) or own.options is not None:
            where_from = ("methods", method, "options" if own.target is None else "target")
            others[method] = find(own.target or specialization.target, own.options or {}, where_from)
    target = find(specialization.target, specialization.options, ("target",))
    return PlannedSpecialization(
        specialization.payload, target, specialization.required, others, specialization.methods
    )


def _missing(planned: PlannedSpecialization) -> Iterator[tuple[tuple[str, ...], str]]:
    """The field of each target that is not available on this machine, and the reason."""
    fields = [("target",), *(("methods", method, "target") for method in planned.method_targets)]
    for where, target in zip(fields, planned.targets, strict=True):
        if reason := target.available():
            yield where, f"target {target.name!r} is not available here: {reason}"
