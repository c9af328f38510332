"""What the stages of a recipe have made so far, as the values that functions of the DAG take and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...artifacts.ref import ArtifactRef
from ..stages.compile import Compile
from ..stages.edge import Edge
from ..stages.export import Export
from ..stages.quantize import Quantize
from ..stages.source_transform import SourceTransform


@dataclass(frozen=True)
class Exports:
    """A model, exported."""

    methods: Mapping[str, Export.Outputs]  # by name, in the model's order
    source: Mapping[str, Any]  # key fields of its code, with all that the first method's export was seen to load

    @property
    def first(self) -> Export.Outputs:
        """The export of the first method, which is the one that constants, assets and metadata are taken from."""
        return next(iter(self.methods.values()))

    @property
    def programs(self) -> dict[str, ArtifactRef]:
        return {method: export.program for method, export in self.methods.items()}

    @property
    def examples(self) -> dict[str, ArtifactRef]:
        return {method: export.examples for method, export in self.methods.items()}


@dataclass(frozen=True)
class Prepared:
    """A method's ATen program as all specializations take it, and what was made on the way if a recipe asks for it."""

    program: ArtifactRef
    transformed: SourceTransform.Outputs | None
    samples: ArtifactRef | None  # that quantizers observed in place of the examples
    quantized: Quantize.Outputs | None


@dataclass(frozen=True)
class Payload:
    """The result of a specialization: its programs by method, and the payload."""

    edges: Mapping[str, Edge.Outputs]  # whole, after the recipe's own functions over all of them
    linked: Mapping[str, ArtifactRef]  # that the payload was compiled from
    compiled: Compile.Outputs


@dataclass
class ProgramsSoFar:
    """Programs of a recipe, each added once it is made: if a later stage fails, the ladder still shows these."""

    transformed: dict[str, ArtifactRef] = field(default_factory=dict)  # by method
    quantized: dict[str, ArtifactRef] = field(default_factory=dict)  # by method
    edges: dict[str, dict[str, Edge.Outputs]] = field(default_factory=dict)  # by specialization and method
    payloads: dict[str, Payload] = field(default_factory=dict)  # by specialization
