"""Finds targets and their quantizers by name in the entry-point group ``pteforge.targets``; chains several targets."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce
from importlib.metadata import EntryPoints, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field, ValidationError, create_model

from ...configs.base import TARGET_SEPARATOR, describe_errors
from ...configs.quantize import Quantize
from ...errors import TargetError
from .base import Target, TargetOptions, TargetParams

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

GROUP = "pteforge.targets"


def target_names() -> tuple[str, ...]:
    return tuple(sorted(_entry_points(tuple(sys.path)).names))


@cache
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Read once per process, because that takes milliseconds: the next process sees new installations."""
    del path  # `sys.path`, which entry_points reads itself
    return entry_points(group=GROUP)


def link_names(name: str) -> tuple[str, ...]:
    return tuple(name.split(TARGET_SEPARATOR))


def find_target_class(name: str) -> type[Target]:
    if TARGET_SEPARATOR in name:
        return chain_class(tuple(find_target_class(link) for link in link_names(name)))
    candidates = {entry.value: entry for entry in _entry_points(tuple(sys.path)).select(name=name)}
    if not candidates:
        names = target_names()
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise TargetError(f"unknown target {name!r}; {hint}installed targets: {', '.join(names)}")
    if len(candidates) > 1:
        raise TargetError(f"target {name!r} is claimed by several packages: {', '.join(sorted(candidates))}")
    (entry,) = candidates.values()
    try:
        loaded = entry.load()
    except Exception as error:
        raise TargetError(f"target {name!r} ({entry.value}) cannot be imported: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Target) and getattr(loaded, "name", None) == name):
        raise TargetError(f"entry point {entry.value} is not a Target named {name!r}")
    return loaded


def target_classes(names: Iterable[str]) -> tuple[type[Target], ...]:
    """The classes of targets and of the links of those that are several, each once."""
    return tuple(dict.fromkeys(find_target_class(link) for name in names for link in link_names(name)))


def find_target(name: str, options: dict[str, Any] | None = None) -> Target:
    """The target `name` with validated options; TargetError if there is none, or one that cannot be imported."""
    target = find_target_class(name)
    return target(_validated(f"options of target {name!r}", target.Options, options))


def find_quantizer_options(name: str, options: dict[str, Any] | None = None) -> TargetOptions:
    """Validated options of a target's quantizer; TargetError if it has none or is not available here."""
    target = find_target_class(name)
    if target.QuantizerOptions is None:
        names = ", ".join(other for other in target_names() if find_target_class(other).QuantizerOptions) or "none"
        raise TargetError(f"target {name!r} has no quantizer; targets that have one: {names}")
    validated = _validated(f"quantizer options of target {name!r}", target.QuantizerOptions, options)
    if reason := target.available():
        raise TargetError(f"the quantizer of target {name!r} is not available here: {reason}")
    return validated


def _validated(what: str, kind: type[TargetOptions], options: dict[str, Any] | None) -> TargetOptions:
    try:
        return kind.model_validate(options or {})
    except ValidationError as error:
        known = ", ".join(sorted(kind.model_fields)) or "none"
        raise TargetError(f"{what}: {describe_errors(error)} (its options: {known})") from error


def check_quantizers(quantize: Quantize | None) -> tuple[TargetParams, ...]:
    """A recipe's quantizers in order, with complete options; raises what `find_quantizer_options` does."""
    return tuple(
        TargetParams(
            name=chosen.quantizer,
            options=find_quantizer_options(chosen.quantizer, dict(chosen.options)).model_dump(mode="json"),
        )
        for chosen in (quantize.chosen if quantize else ())
    )


def make_quantizer(
    quantizers: Sequence[TargetParams], filters: Mapping[int, Callable[[Any], bool]] = MappingProxyType({})
) -> Quantizer:
    """One quantizer that runs these one after another; for worker processes only.

    `filters` has functions by the position of their quantizer, which say whether to quantize a node. Raises TargetError
    for a quantizer that takes no filter.
    """
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    made = []
    for position, params in enumerate(quantizers):
        quantizer: Any = find_target_class(params.name).quantizer(find_quantizer_options(params.name, params.options))
        if position in filters:
            if not hasattr(quantizer, "set_filter_function"):
                raise TargetError(f"the quantizer of target {params.name!r} takes no `filter_fn`")
            quantizer.set_filter_function(filters[position])
        made.append(quantizer)
    return made[0] if len(made) == 1 else ComposableQuantizer(made)


def knows_linear_only(quantizers: Sequence[TargetParams]) -> bool:
    """Whether all of the quantizers know products with weights as linear layers only."""
    return all(find_target_class(params.name).knows_linear_only for params in quantizers)


def fold_weights(quantizers: Sequence[TargetParams]) -> bool:
    """Whether to store quantized weights as integers: only if all of the targets accept that."""
    return all(find_target_class(params.name).folds_weights for params in quantizers)


class Chain(Target):
    """Targets whose partitioners run one after another, in the order of `links`. Options are by the target's name."""

    links: ClassVar[tuple[type[Target], ...]] = ()

    @classmethod
    def available(cls) -> str | None:
        return "; ".join(f"{link.name}: {reason}" for link in cls.links if (reason := link.available())) or None

    def decomposition_options(self) -> dict[str, Any] | None:
        """The options of all links: a program is decomposed for all of their partitioners at once."""
        return _joined((link.name, link.decomposition_options()) for link in self._targets())

    def pass_options(self) -> dict[str, Any] | None:
        return _joined((link.name, link.pass_options()) for link in self._targets())

    def before_edge(self, program: ExportedProgram) -> ExportedProgram:
        return reduce(lambda changed, link: link.before_edge(changed), self._targets(), program)

    def after_edge(self, program: ExportedProgram) -> ExportedProgram:
        return reduce(lambda changed, link: link.after_edge(changed), self._targets(), program)

    def edge_passes(self) -> Sequence[PassType | ExportedProgramPassBase]:
        return [edge_pass for link in self._targets() for edge_pass in link.edge_passes()]

    def refuses(self, program: ExportedProgram) -> str | None:
        """The first problem of any link, even if a link before it would claim the operators."""
        return next((problem for link in self._targets() if (problem := link.refuses(program))), None)

    def partitioners(self) -> Sequence[Partitioner]:
        return [partitioner for link in self._targets() for partitioner in link.partitioners()]

    def _targets(self) -> list[Target]:
        return [link(getattr(self.options, link.name)) for link in self.links]


@cache
def chain_class(links: tuple[type[Target], ...]) -> type[Target]:
    """The target that chains others; raises TargetError for impossible chains."""
    names = [link.name for link in links]
    name = TARGET_SEPARATOR.join(names)
    if idle := [link.name for link in links if not link.delegates]:
        raise TargetError(f"target {name!r}: {idle[0]!r} delegates nothing, and runs what the others leave in any case")
    if rewriting := [link.name for link in links if link.operators]:
        raise TargetError(f"target {name!r}: {rewriting[0]!r} rewrites whole programs, and leaves others nothing to do")
    if len(set(names)) < len(names):
        raise TargetError(f"target {name!r} names one target more than once")
    fields: dict[str, Any] = {link.name: (link.Options, Field(default_factory=link.Options)) for link in links}
    options: type[TargetOptions] = create_model("ChainOptions", __base__=TargetOptions, **fields)
    described = {
        "links": links,
        "name": name,
        "Options": options,
        "backends": tuple(dict.fromkeys(backend for link in links for backend in link.backends)),
        "distributions": tuple(dict.fromkeys(name for link in links for name in link.distributions)),
        "reproducible": all(link.reproducible for link in links),
        "quantized_only": all(link.quantized_only for link in links),
        "leaves_affine": any(link.leaves_affine for link in links),
        "keeps_dialect": all(link.keeps_dialect for link in links),
        "skips_dim_order": any(link.skips_dim_order for link in links),
    }
    return cast("type[Target]", type("Chained", (Chain,), described))


def _joined(answered: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    answers = dict(answered)
    if all(answer is None for answer in answers.values()):
        return None
    return {name: answer or {} for name, answer in answers.items()}
