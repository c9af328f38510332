"""What ExecuTorch's public functions make of the models that stages lower."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pteforge.tests.lowering import lower_upstream


@pytest.fixture(scope="session")
def upstream() -> Callable[..., bytes]:
    """Lowers a builder's model with ExecuTorch alone, in one go. Files are made once per session."""
    files: dict[str, bytes] = {}

    def made(builder: str, recipe: Mapping[str, Any]) -> bytes:
        key = json.dumps([builder, recipe], sort_keys=True)
        if key not in files:
            files[key] = bytes(lower_upstream(builder, recipe).buffer)
        return files[key]

    return made
