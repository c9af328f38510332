"""What the examples' tests share: their builders, and their zoo files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pteforge
import pytest
from pteforge.configs import Zoo, load_zoo

EXAMPLES = Path(pteforge.__file__).parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a builder's module as its zoo would: ``folder/module``."""

    def load(path: str) -> ModuleType:
        folder, _, name = path.partition("/")
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], Zoo]:
    """A zoo file, by its path in the examples' folder."""
    return lambda path: load_zoo(EXAMPLES / path).zoo
