"""Several targets for one payload: each takes what those before it leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field, create_model

from ...configs.base import TARGET_SEPARATOR
from ...errors import TargetError
from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram


class Chain(Target):
    """Targets whose partitioners run one after another over the same program; the first of `links` chooses first.

    Options are by the target's name.
    """

    links: ClassVar[tuple[type[Target], ...]] = ()

    @classmethod
    def available(cls) -> str | None:
        return "; ".join(f"{link.name}: {reason}" for link in cls.links if (reason := link.available())) or None

    def decomposition_options(self) -> dict[str, Any] | None:
        """The options of all links: a program is decomposed for all of their partitioners at once."""
        return _joined((link.name, link.decomposition_options()) for link in self._made())

    def pass_options(self) -> dict[str, Any] | None:
        return _joined((link.name, link.pass_options()) for link in self._made())

    def edge_passes(self) -> Sequence[PassType | ExportedProgramPassBase]:
        return [edge_pass for link in self._made() for edge_pass in link.edge_passes()]

    def refuses(self, program: ExportedProgram) -> str | None:
        """The first problem of any link, even if a link before it would claim the operators."""
        return next((problem for link in self._made() if (problem := link.refuses(program))), None)

    def partitioners(self) -> Sequence[Partitioner]:
        return [partitioner for link in self._made() for partitioner in link.partitioners()]

    def _made(self) -> list[Target]:
        return [link(getattr(self.options, link.name)) for link in self.links]


@cache
def chain_class(links: tuple[type[Target], ...]) -> type[Target]:
    """The target that chains others; raises TargetError for impossible chains."""
    names = [link.name for link in links]
    name = TARGET_SEPARATOR.join(names)
    if idle := [link.name for link in links if not link.delegates]:
        raise TargetError(f"target {name!r}: {idle[0]!r} delegates nothing, and runs what the others leave in any case")
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
    }
    return cast("type[Target]", type("Chained", (Chain,), described))


def _joined(answered: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    answers = dict(answered)
    if all(answer is None for answer in answers.values()):
        return None
    return {name: answer or {} for name, answer in answers.items()}
