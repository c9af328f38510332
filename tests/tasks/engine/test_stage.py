"""Typed inputs and outputs of stages, and the roles that they stand for."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, field
from typing import Annotated

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.tasks.engine.kinds import Kind
from pteforge.tasks.engine.stage import Roles, from_roles, to_roles

Bread = Annotated[ArtifactRef, Kind("bread")]
Spread = Annotated[ArtifactRef, Kind("butter", "jam")]


class Sandwich(Roles):
    """One of each way to annotate a field."""

    bread: Bread
    spread: Spread | None = None
    slices: Mapping[str, Spread] = field(default_factory=dict)


def ref(kind):
    digest = digest_bytes(kind.encode())
    return ArtifactRef(kind, BlobRef(digest, 1), digest)


@pytest.mark.parametrize(
    "roles",
    [
        {"bread": "bread"},
        {"bread": "bread", "spread": "jam"},
        {"bread": "bread", "slices": "butter"},
        {"bread": "bread", "slices/a": "jam", "slices/b/c": "butter"},
    ],
)
def test_round_trip(roles):
    """Roles are the fields' names, and those of mappings have their keys behind the first slash, in any order."""
    refs = {role: ref(kind) for role, kind in roles.items()}
    assert list(to_roles(from_roles(Sandwich, dict(reversed(refs.items()))))) == list(refs)
    assert to_roles(from_roles(Sandwich, refs)) == refs


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ({}, "lacks the roles bread; it has none"),
        ({"bread": "bread", "cheese": "bread"}, "has no role 'cheese'; its fields: bread, spread, slices"),
        ({"bread/rye": "bread"}, "has no role 'bread/rye'"),
        ({"bread": "bread", "spread": "bread"}, "'spread' is of kind 'bread', and must be of butter or jam"),
        ({"bread": "bread", "slices/a": "bread"}, "'slices/a' is of kind 'bread'"),
    ],
)
def test_wrong_roles(roles, problem):
    """An error names the role, and what there may be."""
    with pytest.raises(ValueError, match=f"Sandwich.*{problem}"):
        from_roles(Sandwich, {role: ref(kind) for role, kind in roles.items()})


def test_declarations():
    """They are frozen and have keywords only, as values; an annotation without a kind is found at import."""
    with pytest.raises(TypeError, match="positional"):
        Sandwich(ref("bread"))
    with pytest.raises(FrozenInstanceError):
        Sandwich(bread=ref("bread")).bread = ref("jam")
    with pytest.raises(TypeError, match=r"Untyped\.anything must be annotated"):

        class Untyped(Roles):
            anything: ArtifactRef
