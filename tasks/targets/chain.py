"""Several targets for one payload: what one leaves, the next may take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field, create_model

from ...configs.names import TARGET_SEPARATOR
from ...errors import TargetError
from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram


class Chain(Target):
    """Targets whose partitioners run one after another over the same program.

    Its options are those of its links, under their names.

    Attributes:
        links: the targets, the one that chooses first at first.
    """

    links: ClassVar[tuple[type[Target], ...]] = ()

    @classmethod
    def available(cls) -> str | None:
        """Why the first link that is not available is not."""
        return next((f"{link.name}: {reason}" for link in cls.links if (reason := link.available())), None)

    def preserving(self) -> dict[str, Any] | None:
        """What matters to any link: a program is decomposed for all of their partitioners at once."""
        return _answers((link.name, link.preserving()) for link in self._made())

    def transforming(self) -> dict[str, Any] | None:
        """What matters to any link that has passes."""
        return _answers((link.name, link.transforming()) for link in self._made())

    def edge_passes(self) -> Sequence[PassType | ExportedProgramPassBase]:
        """Those of all links, before any partitioner."""
        return [each for link in self._made() for each in link.edge_passes()]

    def refuses(self, program: ExportedProgram) -> str | None:
        """What the first link refuses that refuses anything, also where a link before it would claim that."""
        return next((problem for link in self._made() if (problem := link.refuses(program))), None)

    def partitioners(self) -> Sequence[Partitioner]:
        """Those of all links."""
        return [each for link in self._made() for each in link.partitioners()]

    def _made(self) -> list[Target]:
        return [link(getattr(self.options, link.name)) for link in self.links]


@cache
def chain_class(links: tuple[type[Target], ...]) -> type[Target]:
    """The target that chains others; raises TargetError where that makes no sense."""
    names = [link.name for link in links]
    name = TARGET_SEPARATOR.join(names)
    if idle := [link.name for link in links if not link.delegates]:
        raise TargetError(f"target {name!r}: {idle[0]!r} delegates nothing, and runs what the others leave in any case")
    if len(set(names)) < len(names):
        raise TargetError(f"target {name!r} names one target more than once")
    fields: dict[str, Any] = {link.name: (link.Options, Field(default_factory=link.Options)) for link in links}
    options: type[TargetOptions] = create_model("ChainOptions", __base__=TargetOptions, **fields)
    described = {
        "__doc__": f"{', then '.join(names)}.",
        "links": links,
        "name": name,
        "Options": options,
        "backends": tuple(dict.fromkeys(each for link in links for each in link.backends)),
        "distributions": tuple(dict.fromkeys(each for link in links for each in link.distributions)),
        "reproducible": all(link.reproducible for link in links),
        "quantized_only": all(link.quantized_only for link in links),
    }
    return cast("type[Target]", type("Chained", (Chain,), described))


def _answers(asked: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    answers = dict(asked)
    if all(answer is None for answer in answers.values()):
        return None
    return {name: answer or {} for name, answer in answers.items()}
