"""What a runtime has, according to the user: a release of ExecuTorch, or a contract file.

A contract file is what ``pteforge contract --json`` prints, or a ``selected_operators.yaml`` of ExecuTorch's selective
build, which does not say which backends an app has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from .base import FrozenModel
from .nodes import read_yaml
from .problems import checked

RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
"""A version of ExecuTorch; anything else is the path of a contract file."""

_TENSOR = r"(\d+;[\d,]*|\[\d+;[\d,]*\])"
_KEY = re.compile(rf"default|v1|v1/{_TENSOR}(\|{_TENSOR})*")


def _check_key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(f"{text!r} is no kernel key, such as 'v1/6;0,1|6;0,1', and not 'default'")
    return text


_Key = Annotated[str, AfterValidator(_check_key)]


class Runtime(FrozenModel):
    """A runtime that files are made for."""

    name: str  # for messages: the version, or the name of the contract file
    release: str = ""  # of ExecuTorch, if that is all that is known
    # operator with overload -> keys of its kernels, or ``default``; null: not restricted
    operators: dict[str, tuple[str, ...]] | None = None
    backends: tuple[str, ...] | None = None  # null: not known


class _Contract(FrozenModel):
    """What ``pteforge contract --json`` prints, as far as it says what a runtime has."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1]
    operators: dict[str, tuple[_Key, ...]]
    backends: tuple[str, ...]


class _SelectedOperators(FrozenModel):
    """The fields of ``selected_operators.yaml`` (codegen/tools/gen_oplist.py of executorch 1.5.1) that restrict."""

    model_config = ConfigDict(extra="ignore")

    operators: dict[str, dict[str, object]]
    include_all_operators: bool = False
    et_kernel_metadata: dict[str, tuple[_Key, ...]] = Field({})

    @property
    def kernels(self) -> dict[str, tuple[str, ...]] | None:
        """Kernels without metadata are for any dtype."""
        if self.include_all_operators:
            return None
        return {name: self.et_kernel_metadata.get(name) or ("default",) for name in self.operators}


def read_contract(path: Path) -> Runtime:
    """Reads a contract file; raises ConfigError, with file, line and field of each problem."""
    tree = read_yaml(path, str(path))
    if {"format", "backends"} & tree.entries.keys():
        contract = checked(_Contract, tree)
        return Runtime(name=path.name, operators=dict(contract.operators), backends=contract.backends)
    if "operators" not in tree.entries:
        raise tree.error(
            "this is no contract, which has `operators`; write one with `pteforge contract FILE.pte... --json`, or "
            "name the selected_operators.yaml of the app's build"
        )
    return Runtime(name=path.name, operators=checked(_SelectedOperators, tree).kernels)
