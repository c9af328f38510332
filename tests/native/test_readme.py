"""native/README.md: what it shows works as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pteforge
import pytest

TEXT = (Path(pteforge.__file__).parent / "native" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_example(zoo, containers, tmp_path, monkeypatch):
    """Its code lowers a program with state, and the delegates have the payloads that it names."""
    import torch

    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    exec(code, {"programs": torch.export.export(zoo.Counter(), (torch.ones(3, 4),))})  # noqa: S102 - our own README
    (container,) = containers((tmp_path / "model.pte").read_bytes())
    assert [payload.name for payload in container.payloads] == ["vulkan", "xnnpack", "portable"]


def test_files_are_listed():
    """Its table names each file of the folder, and no other."""
    listed = set(re.findall(r"`(\w+\.py)`", TEXT.partition("## What is where")[2]))
    assert listed == {path.name for path in Path(pteforge.__file__).parent.joinpath("native").glob("*.py")} - {
        "__init__.py"
    }
