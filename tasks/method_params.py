"""What a specialization says of its methods, as params of the stages that lower them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..configs.edge import EdgeOptions
from ..configs.recipe import Recipe
from ..errors import SourceError
from .model import PlannedRecipe, PlannedSpecialization, params_of
from .params import CompileParams, EdgeParams, MethodMemory, TargetParams


def check_methods(recipe: PlannedRecipe, methods: Iterable[str]) -> None:
    """Raises SourceError where a recipe says something of a method that the model does not have."""
    known = list(methods)
    quantize = recipe.recipe.quantize
    if unknown := sorted(set(quantize.methods or ()) - set(known)) if quantize else []:
        raise SourceError(
            f"`quantize.methods` of recipe {recipe.name!r} names the methods {unknown}; the model has {known}"
        )
    for each in recipe.specializations:
        if unknown := sorted(set(each.methods) - set(known)):
            raise SourceError(
                f"specialization {each.name!r} of recipe {recipe.name!r} names the methods {unknown}; "
                f"the model has {known}"
            )


def targets_of(specialization: PlannedSpecialization, methods: Iterable[str]) -> tuple[TargetParams, ...]:
    """The targets that delegate anything of these methods, each once."""
    targets = [target for method in methods if (target := specialization.target_of(method)).delegates]
    made = [params_of(target) for target in targets]
    return tuple(each for position, each in enumerate(made) if each not in made[:position])


def edge_options(recipe: Recipe, specialization: PlannedSpecialization, method: str) -> EdgeOptions:
    """What the recipe says of a method's Edge program."""
    own = specialization.methods.get(method)
    return (own and own.edge) or recipe.edge


def edge_params(recipe: Recipe, specialization: PlannedSpecialization, method: str) -> EdgeParams:
    """How a method becomes an Edge program, but for the recipe's own passes: no later stage has to know of those."""
    options = edge_options(recipe, specialization, method)
    target = specialization.target_of(method)
    keeping, transforming = target.preserving(), target.transforming()
    return EdgeParams(
        preserve_for=None if keeping is None else TargetParams(name=target.name, options=keeping),
        passes_of=None if transforming is None else TargetParams(name=target.name, options=transforming),
        preserve_operators=options.preserve_operators,
        check_ir_validity=options.check_ir_validity,
        skip_dim_order=options.skip_dim_order,
        decompose_affine=bool(recipe.source_transforms) and not target.delegates,
        core_aten_exceptions=options.core_aten_ops_exception_list,
    )


def compile_params(
    recipe: Recipe, specialization: PlannedSpecialization, edges: Mapping[str, EdgeParams]
) -> CompileParams:
    """How the methods become one payload.

    Args:
        recipe: the recipe.
        specialization: the payload's.
        edges: method name to how it became an Edge program, in the model's order.
    """
    memory = {}
    for method, own in specialization.methods.items():
        takes, gives = own.alloc_graph_input, own.alloc_graph_output
        if takes is not None or gives is not None:
            memory[method] = MethodMemory(
                alloc_graph_input=recipe.compile.alloc_graph_input if takes is None else takes,
                alloc_graph_output=recipe.compile.alloc_graph_output if gives is None else gives,
            )
    return CompileParams(
        options=recipe.compiling,
        edge=_common(list(edges.values())),
        methods=memory,
        state_order=tuple(edges) if recipe.compile.share_mutable_buffers else (),
        external_data=recipe.output.payload_is_split,
    )


def _common(edges: list[EdgeParams]) -> EdgeParams:
    """What holds for all of them. Where they differ, each has been checked by `edge` against its own."""
    first, *others = edges
    if all(each == first for each in others):
        return first
    kept = dict.fromkeys(operator for each in edges for operator in each.preserve_operators)
    spared = dict.fromkeys(operator for each in edges for operator in each.core_aten_exceptions)
    return EdgeParams(
        preserve_operators=tuple(kept),
        check_ir_validity=False,
        skip_dim_order=all(each.skip_dim_order for each in edges),
        core_aten_exceptions=tuple(spared),
    )
