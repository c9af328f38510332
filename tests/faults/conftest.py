"""A small lowered zoo, made once for all campaigns that start from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pteforge.tests.faults.zoo import SmallZoo, lower_small_zoo


@pytest.fixture
def small_zoo(made_once: Callable[..., Path], tmp_path: Path) -> SmallZoo:
    made = made_once("small-zoo", lambda folder: lower_small_zoo(folder / "zoo"))
    return SmallZoo(made / "zoo").copy(tmp_path / "zoo")
