"""Inputs of a stage that come one for each method."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifacts.ref import ArtifactRef


def by_method(inputs: Mapping[str, ArtifactRef], kind: str) -> dict[str, ArtifactRef]:
    """Method name to artifact, of the inputs whose role is ``kind/method``; methods in alphabetical order."""
    roles = ((role.partition("/"), ref) for role, ref in sorted(inputs.items()))
    return {method: ref for (found, _, method), ref in roles if found == kind}
