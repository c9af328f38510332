"""The part that the command line loads, without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pteforge.tasks.targets import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class AcmeOptions(TargetOptions):
    """Options of Acme's compiler.

    Attributes:
        clock_rate: in MHz.
    """

    clock_rate: int = 100


@dataclass(frozen=True)
class Acme(Target):
    """Acme's NPU."""

    options: AcmeOptions

    name: ClassVar[str] = "acme"
    Options: ClassVar[type[TargetOptions]] = AcmeOptions
    backends: ClassVar[tuple[str, ...]] = ("AcmeBackend",)
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        return None if "ACME_LICENSE" in os.environ else "get a licence from Acme and set ACME_LICENSE"

    def decomposition_options(self) -> dict[str, Any] | None:
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        from acme_pteforge.backend import AcmePartitioner

        return [AcmePartitioner(self.options.clock_rate)]
