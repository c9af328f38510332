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
import torch
from executorch.exir import to_edge_transform_and_lower
from pteforge.formats.nfat.container import pte_named_data, read_container
from pteforge.formats.pte.reader import read_pte
from pteforge.native import NativePartitioner
from pteforge.tests.lowering import ZOO

_HERE = Path(__file__).parent


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
        """A payload of the first container, as a file."""
        container = self.containers[0]
        return read_pte(b"".join(container.verified(container.payload(name))))


@dataclass(frozen=True)
class Model:
    """A model to lower.

    Attributes:
        methods: module and example inputs of each; dynamic shapes may follow.
        more: further calls, besides one of each method with the example inputs.
        specializations: for NativePartitioner.
        before: partitioners that come first.
    """

    methods: Mapping[str, tuple[Any, ...]]
    more: Sequence[tuple[str, tuple[Any, ...]]] = ()
    specializations: Sequence[Any] = ("xnnpack",)
    before: Callable[[], list[Any]] = field(default=list)

    def lower(self) -> Program:
        """Lowers the model, then calls eager, whose state is still the initial one."""
        exported = {
            name: torch.export.export(module, inputs, dynamic_shapes=next(iter(shapes), None))
            for name, (module, inputs, *shapes) in self.methods.items()
        }
        partitioner = NativePartitioner(self.specializations)
        lowered = to_edge_transform_and_lower(exported, partitioner=[*self.before(), partitioner])
        with torch.no_grad():  # exir refuses to write to state what depends on parameters otherwise
            content = lowered.to_executorch().buffer
            calls = [*((name, inputs) for name, (_, inputs, *_) in self.methods.items()), *self.more]
            expected = [self.methods[name][0](*inputs) for name, inputs in calls]
        outputs = [output if isinstance(output, tuple) else (output,) for output in expected]
        return Program(self, content, calls, [tuple(tensor.clone() for tensor in tensors) for tensors in outputs])


def _containers(content: bytes) -> list[Any]:
    view = memoryview(content)
    pte = read_pte(view)
    named = pte_named_data(view, pte)
    return [
        read_container(delegate.extent.of(view), named)
        for method in pte.methods
        for delegate in method.delegates
        if delegate.id == "NfatBackend"
    ]


@pytest.fixture(scope="session")
def containers() -> Callable[[bytes], list[Any]]:
    return _containers


@pytest.fixture(scope="session")
def zoo() -> Iterator[Any]:
    """The module of models; the other modules of its folder and of tests/zoo can be imported, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ZOO)
        patch.syspath_prepend(_HERE / "zoo")
        yield importlib.import_module("native_models")


@pytest.fixture(scope="session")
def networks(zoo) -> Any:
    """The networks of tests/zoo."""
    del zoo
    return importlib.import_module("networks")


@pytest.fixture(scope="session")
def model() -> type[Model]:
    return Model


@dataclass(frozen=True)
class Outcome:
    """Outputs of each call, and the library's report on the last delegate of each method."""

    outputs: Sequence[Sequence[Any]]
    reports: Mapping[str, tuple[str, ...]]


@pytest.fixture(scope="session")
def run_programs(build, python_path, tmp_path_factory) -> Callable[[Mapping[str, Program]], Mapping[str, Outcome]]:
    """Runs programs in a process of their own, since the library cannot be unloaded."""

    def run(programs: Mapping[str, Program]) -> Mapping[str, Outcome]:
        folder = tmp_path_factory.mktemp("native")
        for name, program in programs.items():
            (folder / f"{name}.pte").write_bytes(program.content)
            torch.save(list(program.calls), folder / f"{name}.calls.pt")
        command = [sys.executable, _HERE / "run.py", build, folder]
        environment = {**os.environ, "PYTHONPATH": str(python_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: Outcome(**torch.load(folder / f"{name}.outputs.pt")) for name in programs}

    return run
