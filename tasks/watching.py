"""What the user's code loads beyond what its sources show: it enters the keys of the stages that run it."""

from __future__ import annotations

from collections.abc import Iterable

from ..artifacts.ledger import Ledger
from ..errors import StageFailed
from .model import PlannedModel
from .params import CallableParams
from .source_params import MethodParams, SourceTransformParams
from .source_transforms import source_transform_params, transform_watch_name
from .steps import Step


def watch(model: PlannedModel, step: Step, loaded: Iterable[str], ledger: Ledger) -> MethodParams:
    """The params of a step that has run, with all that it loaded in them.

    A module that the static closure does not see (imported by a computed name, say) is watched from now on: its code
    enters the key, so a later change of it is a miss. So are packages that the user's imports import.

    Args:
        model: the model.
        step: a step that ran its code.
        loaded: what that loaded (see `tasks.keys.observed`).
        ledger: where watch lists are kept.

    Raises:
        StageFailed: the user's code is not what it was when the step was planned.
    """
    assert isinstance(step.params, MethodParams)  # noqa: S101 - the caller has looked
    before, method = step.params, step.params.method
    recipe = next(each.recipe for each in model.recipes if each.name in step.recipes)

    def params(watched: tuple[str, ...]) -> MethodParams:
        if isinstance(before, SourceTransformParams):
            return source_transform_params(model, recipe, str(method), watched)
        return model.export_params(method, watched)

    transforms = isinstance(before, SourceTransformParams)
    name = transform_watch_name(model, recipe, str(method)) if transforms else model.watch_name(method)
    watched = set(ledger.watched(name))
    if not _says_as_much(params(tuple(sorted(watched))), before):
        raise StageFailed("the model's source changed while it was exported; export it again", bad_input=True)
    now_watched = tuple(sorted(watched | (set(loaded) - _known(before))))
    if watched != set(now_watched):
        ledger.watch(name, now_watched)
    return params(now_watched)


def _known(params: MethodParams) -> set[str]:
    """Modules and distributions that the key has by itself."""
    sources = [params.source]
    if isinstance(params, SourceTransformParams):
        sources += [each.source for each in params.transforms if isinstance(each, CallableParams)]
    return {name for source in sources for part in ("modules", "distributions") for name in source.get(part, ())}


def _says_as_much(now: MethodParams, before: MethodParams) -> bool:
    """Whether a source still is what it was; more of it may be watched by now, for a run of the same source."""
    grown = {
        name: {known: now.source.get(name, {}).get(known) for known in before.source[name]}
        for name in ("modules", "distributions")
        if name in before.source
    }
    return now.model_copy(update={"source": {**now.source, **grown}}) == before
