"""ExecuTorch 1.5.1 looks through all that comes after two partitions, node by node; with this patch, as sets.

`GroupBasedPartitioner._can_merge_partitions` (exir/backend/canonical_partitioners/group_partitioner.py) asks for each
pair of partitions whether a path leaves them and comes back. For a Llama of 12 layers that is 16 million look-ups.
Sound because the answer is the same yes or no. Delete once upstream uses `isdisjoint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx.passes.utils.fuser_utils import validate_partition

_upstream = GroupBasedPartitioner._can_merge_partitions  # noqa: SLF001 - what is patched


@contextmanager
def merging_by_sets() -> Iterator[None]:
    """Applies the patch while the context is open."""
    GroupBasedPartitioner._can_merge_partitions = _can_merge  # noqa: SLF001 - as above
    try:
        yield
    finally:
        GroupBasedPartitioner._can_merge_partitions = _upstream  # noqa: SLF001 - as above


def _can_merge(partitioner: Any, first: int, second: int, partitions: Mapping[int, Any]) -> bool:
    """In place of `GroupBasedPartitioner._can_merge_partitions`."""
    nodes = {*partitions[first].nodes, *partitions[second].nodes}
    users = {user for node in nodes for user in node.users} - nodes
    after = partitioner.dependency_viewer.downstreams_of
    return all(nodes.isdisjoint(after(user)) for user in users) and bool(validate_partition(list(nodes)))
