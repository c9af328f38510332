"""Partitions for XNNPACK that depend on each other, which ExecuTorch proposes and torch refuses to fuse."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import combinations
from typing import Any

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import recipe

DYNAMIC = {"quantizer": "xnnpack", "options": {"dynamic": True}}


def test_verified(lower, monkeypatch):
    """The file is verified, and XNNPACK computes all it can. The partitions that upstream proposes fail."""
    from pteforge.tasks.upstream import xnnpack_partitioner

    asked = recipe("xnnpack", quantize=DYNAMIC, verify={"min_sqnr_db": 20})
    (method,) = read_pte(lower("builders:rotary", asked).file).methods
    assert [delegate.id for delegate in method.delegates] == ["XnnpackBackend"] * 3
    assert set(method.operators) == {"aten::cumsum.out"}
    monkeypatch.setattr(xnnpack_partitioner, "have_cycle", lambda *_: False)
    with pytest.raises(AssertionError, match="Invalid partition, found dependency cycles"):
        lower("builders:rotary", asked)


def _random(seed: int) -> tuple[Any, list[list[Any]]]:
    """A graph module, and groups of half of its nodes: those that take the same value, as quantized layers are."""
    import torch

    chance = random.Random(seed)  # noqa: S311 - no secret
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x_{number}") for number in range(3)]
    groups = defaultdict(list)
    for _ in range(60):
        used = tuple(chance.choices(nodes, k=chance.choice([1, 1, 1, 1, 2])))
        nodes.append(graph.call_function(torch.relu if len(used) == 1 else torch.add, used))
        if chance.random() < 0.5:
            groups[used if len(used) == 1 else nodes[-1]].append(nodes[-1])
    graph.output(tuple(nodes))
    return torch.fx.GraphModule(torch.nn.Module(), graph), list(groups.values())


def _fuses(module: Any, partitions: list[Any]) -> bool:
    """Whether torch makes a submodule of each partition."""
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    try:
        fuse_by_partitions(module, [partition.nodes for partition in partitions])
    except AssertionError as error:
        if "dependency cycles" not in str(error):
            raise
        return False
    return True


def test_cycles_are_those_that_torch_finds():
    """`have_cycle` says of partitions that upstream proposes whether torch refuses to fuse them."""
    from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
        generate_grouped_partitions_from_list_of_nodes,
    )
    from pteforge.tasks.upstream.partition_cycles import have_cycle

    found = []
    for module, groups in map(_random, range(20)):
        partitions = generate_grouped_partitions_from_list_of_nodes(module, groups)
        found.append(have_cycle(module.graph, partitions))
        assert _fuses(module, partitions) != found[-1]
    assert set(found) == {False, True}


def test_merged_without_cycles():
    """All nodes are in partitions that torch fuses, and no two of these could be one."""
    from pteforge.tasks.upstream.partition_cycles import have_cycle, merged_without_cycles
    from torch.fx.passes.infra.partitioner import Partition

    for module, groups in map(_random, range(20)):
        partitions = merged_without_cycles(module, groups)
        nodes = [node for partition in partitions for node in partition.nodes]
        assert Counter(nodes) == Counter(node for group in groups for node in group)
        for one, other in combinations(partitions, 2):
            merged = Partition(one.id, [*one.nodes, *other.nodes])
            assert have_cycle(module.graph, [merged, *(p for p in partitions if p not in (one, other))])
        assert _fuses(module, partitions)
