"""A module with datasets and readers that evaluators name."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

_NUMBERS = itertools.count()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module; returns its name."""

    def write(text: str) -> str:
        name = f"evaluated_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(f"import torch\n{text}", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write


def echo(output, method="forward"):
    """A model whose input is its output."""
    del method
    return output
