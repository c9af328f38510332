"""Programs that are lowered by NativePartitioner and run with the C++ library."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_ZOO = _HERE / "zoo"


@dataclass(frozen=True)
class Program:
    """A lowered program.

    Attributes:
        model: what it was made of.
        content: the `.pte`.
        calls: method and inputs of each call, in order.
        expected: eager's outputs of each call.
    """

    model: Model
    content: bytes
    calls: Sequence[tuple[str, tuple[Any, ...]]]
    expected: Sequence[tuple[Any, ...]]

    @property
    def containers(self) -> list[Any]:
        """The containers of its delegates, in the file's order, with their blobs."""
        return _containers(self.content)

    def payload(self, name: str) -> Any:
        """What a payload's file holds; the first container's."""
        from pteforge.artifacts.pte.reader import read_pte

        opened = self.containers[0]
        return read_pte(opened.rebuild(opened.payload(name)))


@dataclass(frozen=True)
class Model:
    """A model to lower.

    Attributes:
        methods: module, example inputs and dynamic shapes of each.
        more: further calls, besides one of each method with the example inputs.
        specializations: for NativePartitioner.
        before: partitioners that come first.
    """

    methods: Mapping[str, tuple[Any, tuple[Any, ...], Any]]
    more: Sequence[tuple[str, tuple[Any, ...]]] = ()
    specializations: Sequence[Any] = ("xnnpack",)
    before: Callable[[], list[Any]] = field(default=list)

    def lower(self) -> Program:
        """The program; eager is asked after it is made, call by call."""
        import torch
        from executorch.exir import to_edge_transform_and_lower
        from pteforge.native import NativePartitioner

        exported = {
            name: torch.export.export(module, inputs, dynamic_shapes=shapes)
            for name, (module, inputs, shapes) in self.methods.items()
        }
        partitioner = NativePartitioner(self.specializations)
        lowered = to_edge_transform_and_lower(exported, partitioner=[*self.before(), partitioner])
        with torch.no_grad():  # exir refuses to write to state what depends on parameters otherwise
            content = lowered.to_executorch().buffer
            calls = [*((name, inputs) for name, (_, inputs, _) in self.methods.items()), *self.more]
            expected = [self.methods[name][0](*inputs) for name, inputs in calls]
        expected = [each if isinstance(each, tuple) else (each,) for each in expected]
        return Program(self, content, calls, [tuple(output.clone() for output in each) for each in expected])


def _containers(content: bytes) -> list[Any]:
    from pteforge.artifacts.nfat.container import read_container
    from pteforge.artifacts.nfat.named_data import pte_named_data
    from pteforge.artifacts.pte.reader import read_pte

    view = memoryview(content)
    pte = read_pte(view)
    named = pte_named_data(view, pte)
    return [
        read_container(view[each.offset : each.offset + each.size], named)
        for method in pte.methods
        for each in method.delegates
        if each.id == "NfatBackend"
    ]


@pytest.fixture(scope="session")
def containers() -> Callable[[bytes], list[Any]]:
    """The containers of a file's delegates."""
    return _containers


@pytest.fixture(scope="session")
def zoo() -> Iterator[Any]:
    """The module of models; other modules beside it can be imported, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_ZOO)
        yield importlib.import_module("native_models")


@pytest.fixture(scope="session")
def model() -> type[Model]:
    """The class of models to lower."""
    return Model


@dataclass(frozen=True)
class Outcome:
    """What a program did.

    Attributes:
        outputs: of each call.
        reports: what the library said when a method was loaded, of its last delegate.
    """

    outputs: Sequence[Sequence[Any]]
    reports: Mapping[str, tuple[str, ...]]


@pytest.fixture(scope="session")
def run_programs(
    build: Path, python_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mapping[str, Program]], Mapping[str, Outcome]]:
    """Runs programs in a process of their own: the library cannot be unloaded."""

    def run(programs: Mapping[str, Program]) -> Mapping[str, Outcome]:
        import torch

        folder = tmp_path_factory.mktemp("native")
        for name, program in programs.items():
            (folder / f"{name}.pte").write_bytes(program.content)
            torch.save(list(program.calls), folder / f"{name}.calls.pt")
        done = subprocess.run(
            [sys.executable, _HERE / "run.py", build, folder],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(python_path)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: Outcome(**torch.load(folder / f"{name}.outputs.pt")) for name in programs}

    return run
