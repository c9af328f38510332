"""The key of one stage execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...artifacts.digest import Digest, digest_json

JSON: TypeAlias = Mapping[str, "JSON"] | Sequence["JSON"] | str | int | float | bool | None
"""A JSON value."""


@dataclass(frozen=True)
class StageKey:
    """Everything that decides what a stage gives. Equal keys mean equal outputs.

    Attributes:
        stage: the stage's name.
        code: digest of the code it runs (`stage_code_digest`).
        versions: version by distribution, or by what else has one.
        inputs: identity of each input artifact, by role.
        params: what it reads besides its inputs.
    """

    stage: str
    code: Digest
    versions: Mapping[str, str]
    inputs: Mapping[str, Digest]
    params: JSON

    def fields(self) -> dict[str, JSON]:
        """The key as JSON: kept beside its digest, so that two keys can be compared field by field."""
        return {
            "stage": self.stage,
            "code": self.code,
            "versions": dict(self.versions),
            "inputs": dict(self.inputs),
            "params": self.params,
        }

    def digest(self) -> Digest:
        """SHA-256 of the canonical JSON of `fields`."""
        return digest_json(self.fields())
