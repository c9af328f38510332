"""Lowering small networks with a target in this process, by ExecuTorch's public call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.tasks.targets import find_target


@pytest.fixture
def compile_specs() -> Callable[..., dict[str, bytes]]:
    """The compile specs with which a target's one partitioner delegates."""

    def made(name: str, **options: Any) -> dict[str, bytes]:
        (partitioner,) = find_target(name, options).partitioners()
        return {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}

    return made


@pytest.fixture
def lower() -> Callable[..., bytes]:
    """Lowers a module for a target with options."""

    def lowered(name: str, module: Any, inputs: tuple[Any, ...], **options: Any) -> bytes:
        import torch
        from executorch.exir import to_edge_transform_and_lower

        partitioners = list(find_target(name, options).partitioners())
        program = torch.export.export(module.eval(), inputs)
        content: bytes = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer
        return content

    return lowered


@pytest.fixture
def operators() -> Callable[[bytes], set[str]]:
    """The operators of a file's methods that are not delegated."""

    def names(content: bytes) -> set[str]:
        return {operator for method in read_pte(content).methods for operator in method.operators}

    return names
