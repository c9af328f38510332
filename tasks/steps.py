"""Steps: stages with their params, and whose outputs they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .catalog import StageName
from .params import Params, SerializeParams, TargetParams


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a step."""

    step: str
    role: str


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of one model, to be run or found in the ledger.

    Attributes:
        name: unique in its model: stage, then method and recipe where they tell steps apart.
        stage: which stage.
        params: what it reads besides artifacts.
        inputs: role to the output of an earlier step.
        recipes: the recipes that need it.
        targets: the targets whose code takes part.
        optional: roles of inputs that it does without where the step they come from cannot be settled.
    """

    name: str
    stage: StageName
    params: Params
    inputs: Mapping[str, Output]
    recipes: tuple[str, ...]
    targets: tuple[TargetParams, ...] = ()
    optional: frozenset[str] = frozenset()

    @property
    def isolated(self) -> bool:
        """Whether its stage needs ExecuTorch, and so a worker process."""
        return self.stage.kind.isolated or self._makes_fat_file

    @property
    def distributions(self) -> tuple[str, ...]:
        """Packages whose versions its result depends on, besides those of its targets."""
        return ("torch", "executorch") if self._makes_fat_file else self.stage.kind.distributions

    @property
    def _makes_fat_file(self) -> bool:
        return isinstance(self.params, SerializeParams) and self.params.form == "fat"


def leading_to(name: str, steps: Sequence[Step], *, required_only: bool = False) -> tuple[str, ...]:
    """The step and all that it reads from, directly or not, in the order of `steps`.

    Args:
        name: of the step.
        steps: each after those it reads from.
        required_only: leave out what optional inputs come from.
    """
    needed = {name}
    for step in reversed(steps):
        if step.name in needed:
            left_out = step.optional if required_only else ()
            needed |= {output.step for role, output in step.inputs.items() if role not in left_out}
    return tuple(step.name for step in steps if step.name in needed)


class Steps:
    """Steps by what they do."""

    def __init__(self) -> None:
        self._by_work: dict[tuple[StageName, str, tuple[tuple[str, Output], ...]], str] = {}
        self._steps: dict[str, Step] = {}

    def add(
        self,
        name: str,
        stage: StageName,
        params: Params,
        inputs: Mapping[str, Output],
        recipes: tuple[str, ...],
        targets: tuple[TargetParams, ...] = (),
        optional: frozenset[str] = frozenset(),
    ) -> str:
        """The name of the step that does this work, a new one if there is none yet."""
        work = (stage, params.model_dump_json(), tuple(sorted((role, output) for role, output in inputs.items())))
        known = self._by_work.setdefault(work, name)
        step = self._steps.get(known) or Step(name, stage, params, inputs, (), targets, optional)
        self._steps[known] = replace(step, recipes=tuple(dict.fromkeys((*step.recipes, *recipes))))
        return known

    def all(self) -> tuple[Step, ...]:
        """Every step, each after those it reads from."""
        return tuple(self._steps.values())

    def needed_by(self, name: str) -> tuple[str, ...]:
        """The step and all that it reads from, directly or not, in the order of the plan."""
        return leading_to(name, self.all())
