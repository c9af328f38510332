"""Records of models that the ledger has whole, with all recipes. A rerun checks them first, in one read for a zoo.

A record is an index of the records of the stages. It holds as long as

1. its key is equal: all that the lowering of the model depends on except the user's code, which is the planned model
   with its recipes, the code of pteforge and of other packages' targets, versions, and the machine's instructions;
2. the user's code is equal, digested again with the modules, files and environment variables that were watched when
   the record was written;
3. every object of the file, its data and its provenance is in the store. Intermediate objects may be gone.

Otherwise the stages are looked up one by one. A model has one record, replaced or dropped whenever its stages are
looked up, so that the ledger's slots have the keys of the record's stages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from ...artifacts.digest import Digest, digest_bytes, digest_json
from ...artifacts.ledger import ModelRecord, SourceRecord
from ...artifacts.runs import StageOutcome
from ...configs.sources import BuilderSource, ProgramSource
from ...errors import CodeChanged, PteforgeError, SourceError
from ...tasks.engine.executor import Executor
from ...tasks.engine.keys.code import PTEFORGE, stage_code_digest
from ...tasks.engine.keys.loaded import check_distributions, own_sources
from ...tasks.engine.keys.search import ModuleSearch, host_capability, toolchain_versions
from ...tasks.engine.keys.source import source_fields
from ...tasks.engine.runner import StageCall
from ...tasks.lowering.model import TOOLCHAIN, PlannedModel
from ...tasks.lowering.runs import ModelRun
from ...tasks.results.delivered import Delivered
from ...tasks.targets.find import find_target_class, link_names
from ...tasks.verify.places import processor

_SOURCE: TypeAdapter[BuilderSource | ProgramSource] = TypeAdapter(BuilderSource | ProgramSource)


class WholeModels:
    """The records of one zoo."""

    def __init__(self, executor: Executor, zoo: str) -> None:
        self._executor = executor
        self._store = executor.store
        self._zoo = zoo
        self._store.forget_damaged()
        self._records = self._store.ledger.whole_models(zoo)
        self._changes: dict[str, ModelRecord | None] = {}
        self._finders: dict[tuple[Path, ...], ModuleSearch] = {}

    def find(self, model: PlannedModel) -> ModelRecord | None:
        """The record of a model, if it holds and the run does not refresh."""
        if self._store.forget_damaged():
            self._records = self._store.ledger.whole_models(self._zoo)
        record = self._records.get(model.name)
        if record is None or self._executor.refresh:
            return None
        try:
            holds = record.key == self._key(model, record.distributions) and self._same_sources(model, record)
        except (SourceError, CodeChanged):
            return None  # a file is gone, or code has changed: looking up the stages reports it
        return record if holds and self._store.has_all(record.objects) else None

    def note(self, run: ModelRun, stages: Iterable[StageOutcome], outcomes: Sequence[Delivered]) -> None:
        """Makes the record of a model whose stages were looked up or run; drops it if something is missing."""
        try:
            self._changes[run.model.name] = self._describe(run, stages, outcomes)
        except PteforgeError:
            self._changes[run.model.name] = None

    def save(self) -> None:
        """Merges the new records into those in the store, which other runs may change; raises StoreUnusable."""
        if not self._changes:
            return
        before = self._store.ledger.whole_models(self._zoo)
        after = {name: record for name, record in {**before, **self._changes}.items() if record}
        if after != before:
            self._store.ledger.remember_whole_models(self._zoo, after)
        self._changes = {}

    def _describe(
        self, run: ModelRun, stages: Iterable[StageOutcome], outcomes: Sequence[Delivered]
    ) -> ModelRecord | None:
        """The record for the next run: all stages are cached."""
        recipes = [
            replace(delivered, status="cached", path=None)
            for delivered in outcomes
            if "provenance" in delivered.parts and not delivered.debugging
        ]
        if len(recipes) < len(outcomes) or any(part.failed for part in run.all()):
            return None
        calls = [done.call for part in run.all() for done in part.done.values()]
        distributions = tuple(sorted({name for call in calls for name in call.stage.versions_of(call.params)}))
        parts = [ref for recipe in recipes for ref in recipe.parts.values()]
        return ModelRecord(
            self._key(run.model, distributions),
            distributions,
            tuple(self._sources(run, calls)),
            tuple(
                replace(stage, status="cached", differs=(), message="", queued=0.0, predicted_memory=0)
                for stage in stages
            ),
            tuple(json.loads(recipe.encode()) for recipe in recipes),
            tuple(dict.fromkeys(blob for ref in parts for blob in self._store.objects_of(ref))),
        )

    def _sources(self, run: ModelRun, calls: Iterable[StageCall]) -> Iterator[SourceRecord]:
        """The user's code that stages run, with everything watched by now, to which stages that ran may have added."""
        watching = [(call.user_code, call.params.source) for call in calls if call.user_code]
        digests = {
            (code.source.model_dump_json(), self._store.ledger.watched(code.watch_name)): digest_json(fields)
            for code, fields in watching
        }
        watched = {source for source, _ in digests}
        digests |= {asked: digest for asked, digest in run.sources.items() if asked[0] not in watched}
        for (source, names), digest in sorted(digests.items()):
            yield SourceRecord(json.loads(source), names, digest)

    def _key(self, model: PlannedModel, distributions: tuple[str, ...]) -> Digest:
        specializations = [spec for recipe in model.recipes for spec in recipe.specializations]
        targets = {target.name for spec in specializations for target in spec.targets}
        targets |= {quantizer.name for recipe in model.recipes for quantizer in recipe.quantizers}
        timed = any(recipe.recipe.verify.bench for recipe in model.recipes)
        machine = [host_capability(), *([processor()] if timed else [])]
        return digest_json([repr(model), *machine, _toolchain(distributions, tuple(sorted(targets)))])

    def _same_sources(self, model: PlannedModel, record: ModelRecord) -> bool:
        """Whether the user's code is unchanged; raises SourceError."""
        finder = self._finders.setdefault(model.python_path, ModuleSearch(model.python_path))

        def digest(recorded: SourceRecord) -> Digest:
            source = _SOURCE.validate_python(recorded.source)
            digest_input = self._store.inputs.digest
            fields = source_fields(source, finder, recorded.watched, folder=model.folder, digest=digest_input)
            return digest_json(fields)

        return all(digest(recorded) == recorded.digest for recorded in record.sources)


@cache
def _toolchain(distributions: tuple[str, ...], targets: tuple[str, ...]) -> Digest:
    """Digest of versions and of all code except the user's, computed once per process, which loads code once."""
    classes = [find_target_class(link) for target in targets for link in link_names(target)]
    modules = sorted({target.__module__ for target in classes})
    others = [stage_code_digest(module) for module in modules if module.partition(".")[0] != PTEFORGE]
    names = {*TOOLCHAIN, *distributions, *(name for target in classes for name in target.distributions)}
    versions = toolchain_versions(names)
    check_distributions(versions)
    # pteforge's own code with its comments: parsing it would take ten times as long
    package = digest_json({path: digest_bytes(content) for path, content in own_sources().items()})
    return digest_json([package, others, list(targets), versions])
