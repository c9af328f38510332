"""The search for a quantization: variants, both of two, and layers in floating point, each tried as a whole file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...artifacts.ref import ArtifactRef
from ...configs.quantize import QuantizationSearch, QuantizationVariant
from ...configs.verification import AccuracyGate
from ...errors import AccuracyMissed, StageFailed, TargetError, first_line
from ..engine.stage import is_known
from ..results.accuracy import AccuracyReport, FoundQuantization, ScoredFile, Scores, next_count
from ..results.quantization import Quantization
from ..verify.stages.gate import judge
from . import quality
from .model import PlannedRecipe
from .runs import Exports, MadeFile, Prepared, ProgramsSoFar, RecipeRun

_NAMED = 4  # layers in an error
_LITTLE = 0.01  # of a file's size; layers that save no more are not quantized again
_CONFIRMED = 8  # files at most that are scored on the gate's own data
_SAVED = 3  # bytes of each weight that becomes int8

MakeFile = Callable[[RecipeRun, Exports, ProgramsSoFar], Awaitable[MadeFile]]


class _NotScoredError(Exception):
    """A file is planned only, for a store that does not have its scores."""


@dataclass(frozen=True)
class _Trial:
    """A file that was made and scored, with all that it was made of."""

    scored: ScoredFile
    variant: QuantizationVariant
    layers: tuple[str, ...]  # in floating point
    run: RecipeRun
    made: MadeFile | None  # None if it cannot be made

    @property
    def prepared(self) -> Mapping[str, Prepared]:
        return self.made.prepared if self.made else {}

    @property
    def seconds(self) -> float:
        """How long its stages took when they ran, now or before."""
        return sum(done.seconds for step, done in self.run.done.items() if step.attempt == self.run.number)


async def search_quantization(run: RecipeRun, exports: Exports, make_file: MakeFile) -> PlannedRecipe:
    """The recipe, or what its search finds: the smallest file that passes, with as few layers left out as will do.

    Each variant is tried with all layers. If no file passes, the one that scores best is tried together with each
    other one, as long as that helps; then the layers that lose most are left in floating point. Those of them that save
    most are quantized again where the others are enough. The same is tried with other variants whose own files are
    smaller than what was found. If it was chosen by tuning data and fails the gate on the gate's own data, the next
    file that passes there is taken. Without an accuracy gate, files are scored by their SQNR, and have to be within the
    recipe's bounds. Raises AccuracyMissed.
    """
    asked = run.plan.search
    if asked is None:
        return run.plan
    search = _Search(run, exports, make_file, asked)
    try:
        first = await search.vary()
        await search.leave_layers(first)
        while (other := search.smaller()) is not None:
            with suppress(AccuracyMissed):
                await search.leave_layers(other)
        found = await search.confirmed()
    except _NotScoredError:
        return run.plan
    chosen = run.plan.varied(found.variant).without(found.layers)
    scored, size = tuple(trial.scored for trial in search.trials), _size_of(run, exports.programs.values())
    ranked = next((count for variant, count in search.ranked if variant == found.variant), 0)
    result = FoundQuantization(found.layers, chosen.excluded, ranked, scored, size, found.scored.variant)
    return replace(chosen, found=result)


@dataclass
class _Search:
    run: RecipeRun
    exports: Exports
    make_file: MakeFile
    asked: QuantizationSearch
    trials: list[_Trial] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # of files that cannot be made or run
    ranked: list[tuple[QuantizationVariant, int]] = field(default_factory=list)  # numbers of layers

    @property
    def may_try(self) -> bool:
        """Whether one more file is within the budget."""
        if isinstance(self.asked.budget, int):
            return len(self.trials) < self.asked.budget
        return sum(trial.seconds for trial in self.trials) < self.asked.budget

    async def vary(self) -> _Trial:
        """The best file with all layers: with the recipe, a variant, or several."""
        for variant in (QuantizationVariant(), *self.asked.variants):
            if self.may_try:
                await self._try(variant)
        varied = sorted(self.trials[1:], key=_order)
        before: _Trial | None = None
        while self.best is not before:
            before = self.best
            for other in varied:
                best = self.best
                both = (best if best.variant.written else varied[0]).variant.joined(other.variant)
                if self.may_try and not best.scored.passes and all(trial.variant != both for trial in self.trials):
                    with suppress(TargetError):  # where they contradict each other
                        await self._try(both)
        best = self.best
        if best.scored.problem:
            raise self.failures[0]
        return best

    @property
    def best(self) -> _Trial:
        return min(self.trials, key=_order)

    async def leave_layers(self, first: _Trial) -> None:
        """Tries a variant with layers in floating point; raises AccuracyMissed if no file passes."""
        ranked = () if first.scored.passes else await quality.rank(first.run, self.exports, first.prepared)
        self.ranked.append((first.variant, len(ranked)))
        await self.put_back(await self.leave_out(first, ranked))

    def smaller(self) -> _Trial | None:
        """The best file that does not pass, and may with layers left out, of those smaller than the best that does."""
        tried = [variant for variant, _ in self.ranked]
        least = (1 - _LITTLE) * _cost(self.best.scored)
        others = [
            trial
            for trial in self.trials
            if not (trial.layers or trial.scored.passes or trial.scored.problem or trial.variant in tried)
            and _cost(trial.scored) < least
        ]
        return min(others, key=_order) if others and self.may_try else None

    async def confirmed(self) -> _Trial:
        """The best file that passes the gate on its own data, too; the best of all where none of a few does."""
        gate = self.run.plan.gate if self.asked.evaluator_kwargs else None
        passing = sorted((trial for trial in self.trials if trial.scored.passes), key=_order)
        for trial in passing[:_CONFIRMED]:
            with suppress(StageFailed):  # on that data
                judged = await self._judged(trial.run, gate, trial.made) if gate and trial.made else None
                if judged and not judged.misses():
                    return trial
        return passing[0]

    async def leave_out(self, first: _Trial, ranked: Sequence[str]) -> _Trial:
        """The file that passes with the fewest layers in floating point, the worst of those that are ranked."""
        tried = [first]
        while self.may_try and (count := next_count([trial.scored for trial in tried], len(ranked))) is not None:
            tried.append(await self._try(first.variant, ranked[:count]))
        if passing := [trial for trial in tried if trial.scored.passes]:
            return min(passing, key=lambda trial: trial.scored.layers)
        best = self.best.scored
        names = f" ({', '.join(ranked[:_NAMED])}{', ...' if len(ranked) > _NAMED else ''} lose most)" if ranked else ""
        budget = f"{self.asked.budget}" if isinstance(self.asked.budget, int) else f"{self.asked.budget:g} s"
        gate = self.run.plan.gate
        raise AccuracyMissed(
            f"no file passes that `quantize.search` made. Of {len(self.trials)} ({budget} are allowed), the best "
            f"scores {best.score:.6g}{'' if gate else ' dB'}, with {best.layers} of {len(ranked)} layers in floating "
            f"point{names}; allow more with `budget`, or accept "
            f"{'a lower score with `drop` or `keep`' if gate else 'less with `verify: {min_sqnr_db: ...}`'}"
        )

    async def put_back(self, found: _Trial) -> None:
        """Tries to quantize layers again of which the others may be enough, those first that save most."""
        saved = dict.fromkeys(found.layers[:-1], 0)  # with all but the last, it did not pass
        for own in found.prepared.values():
            if own.quantized and is_known(own.quantized.quantization):
                for reached in Quantization.found(self.run.read_json(own.quantized.quantization)):
                    for layer in saved:
                        weights = (weight for weight in reached.left if weight.name.startswith(f"{layer}."))
                        saved[layer] += _SAVED * sum(weight.elements for weight in weights)
        for layer in sorted(saved, key=lambda layer: -saved[layer]):
            if self.may_try and saved[layer] > _LITTLE * found.scored.size:
                others = [other for other in found.layers if other != layer]
                trial = await self._try(found.variant, others)
                found = trial if trial.scored.passes else found

    async def _try(self, variant: QuantizationVariant, layers: Sequence[str] = ()) -> _Trial:
        """Makes and scores a file with these layers in floating point."""
        attempt = self.run.attempt(self.run.plan.varied(variant).without(layers))
        asked = ScoredFile(len(layers), variant=variant.written)
        made: MadeFile | None = None
        try:
            made = await self.make_file(attempt, self.exports, ProgramsSoFar())
            scored = await self._score(asked, attempt, made)
        except StageFailed as error:
            scored = replace(asked, problem=first_line(error))
            self.failures.append(error)
        trial = _Trial(scored, variant, tuple(layers), attempt, made)
        self.trials.append(trial)
        return trial

    async def _score(self, asked: ScoredFile, attempt: RecipeRun, made: MadeFile) -> ScoredFile:
        """Raises _NotScoredError."""
        if (gate := attempt.plan.gate) is None:
            if (like := await quality.likeness(attempt, self.exports, made)) is None:
                raise _NotScoredError
            score, passes = like
        else:
            judged = await self._judged(attempt, gate.with_arguments(self.asked.evaluator_kwargs), made)
            if judged is None:
                raise _NotScoredError
            score, passes = judged.worst, not judged.misses()
        size = _size_of(self.run, filter(None, (made.file.file, made.file.data)))
        seconds = await quality.time_calls(attempt, self.exports, made) if self.asked.goal == "latency" else 0.0
        return replace(asked, score=score, passes=passes, size=size, seconds=seconds)

    async def _judged(self, attempt: RecipeRun, gate: AccuracyGate, made: MadeFile) -> AccuracyReport | None:
        """The scores of a file by a gate; None if it is planned only."""
        bounds, refs = await quality.make_scores(attempt, gate, self.exports, made)
        if not all(map(is_known, refs.values())):
            return None
        scores = {role: Scores.from_json(attempt.read_json(ref)) for role, ref in refs.items()}
        return judge(bounds, scores["scores"], scores.get("baseline"))


def _cost(scored: ScoredFile) -> float:
    """Seconds of calls where the goal is latency, else bytes."""
    return scored.seconds or scored.size


def _order(trial: _Trial) -> tuple[bool, float, float]:
    return trial.scored.order


def _size_of(run: RecipeRun, artifacts: Iterable[ArtifactRef]) -> int:
    """Bytes of artifacts; what several have counts once."""
    return sum(blob.size for blob in {blob for ref in artifacts for blob in run.store.objects_of(ref)})
