"""Programs without the bytes of their weights ("graphs"), and putting the two together without loading either.

The manifest of a program names a second artifact: its graph, which has everything but the bytes of the weights. Stages
that do not read weights take the graph, so that their results serve every set of weights. The result is a graph as
well, in which each storage of a weight has a *slot*: the position of that storage in the program that it came from.
`bind` adds the weights of a program with the same graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...artifacts.digest import Digest, digest_json
from ...artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef
from ...artifacts.store import Store

REFUSED = "graph/refused"  # kind of a text that says why a stage cannot do without the bytes of weights
WEIGHT = "weight"  # kind of an external of a program: slot and size follow

ON_GRAPHS = frozenset({"mlx", "portable", "vulkan", "xnnpack"})
"""Targets whose partitioners look at graphs only. Tests compare their results with those made with weights."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight's storage: a blob, and an offset in it."""

    slot: int
    digest: Digest
    blob: BlobRef
    offset: int


def is_graph(ref: ArtifactRef) -> bool:
    return ref.kind.startswith("graph/") and ref.kind != REFUSED


def graph_kind(kind: str) -> str:
    """The kind of the graphs of programs of a kind; graphs' own kinds stay."""
    return kind.replace("program/", "graph/", 1)


def identity_of(kind: str, body: Any, weights: Iterable[Weight] = ()) -> Digest:
    """The identity of a program, whichever of its storages are weights; without `weights`, that of its graph."""
    digests = {weight.slot: weight.digest for weight in weights}
    contents = [digests.get(part[0], part) if isinstance(part, list) else part for part in body["contents"]]
    return digest_json([kind, body["form"], contents])


def with_weights(
    kind: str, graph: ArtifactRef | None, manifest: ArtifactManifest, weights: Iterable[Weight]
) -> ArtifactManifest:
    """The manifest of a program: that of its graph, its used weights, and the graph if it can do without them."""
    slots = {entry[1] for entry in manifest.body["externals"] if entry[0] == WEIGHT}
    used = [weight for weight in weights if weight.slot in slots]
    if missing := slots - {weight.slot for weight in used}:
        raise ValueError(f"a {kind} has no weights for the slots {sorted(missing)}")
    numbers = {blob: number for number, blob in enumerate(manifest.blobs)}
    stored = [
        [weight.slot, weight.digest, numbers.setdefault(weight.blob, len(numbers)), weight.offset] for weight in used
    ]
    named = graph and [numbers.setdefault(graph.root, len(numbers)), graph.identity]
    return ArtifactManifest(kind, tuple(numbers), {**manifest.body, "weights": stored, "graph": named})


def weights_of(manifest: ArtifactManifest) -> list[Weight]:
    """The weights of a program; none of those of a graph."""
    stored = manifest.body.get("weights", ())
    return [Weight(slot, digest, manifest.blobs[number], offset) for slot, digest, number, offset in stored]


def graph_of(program: ArtifactRef, store: Store) -> ArtifactRef | None:
    """The graph of a program; None if it needs its weights. Raises StoreError if the manifest is gone or damaged."""
    manifest = _manifest(program, store)
    if not manifest.body.get("graph"):
        return None
    number, identity = manifest.body["graph"]
    return ArtifactRef(graph_kind(program.kind), manifest.blobs[number], identity, composite=True)


def bind(graph: ArtifactRef, program: ArtifactRef, store: Store) -> ArtifactRef:
    """A stage's result for a program, from its result for the program's graph, and the program's weights.

    Only the manifest is new, and only in the local store. Raises StoreError if a manifest is gone or damaged.
    """
    manifest, weights = _manifest(graph, store), weights_of(_manifest(program, store))
    kind = graph.kind.replace("graph/", "program/", 1)
    bound = with_weights(kind, graph, manifest, weights)
    identity = identity_of(kind, bound.body, weights)
    return ArtifactRef(kind, store.local.put_bytes(bound.encode()), identity, composite=True)


def _manifest(ref: ArtifactRef, store: Store) -> ArtifactManifest:
    store.objects_of(ref)  # remote stores download it
    return store.local.manifest(ref)
