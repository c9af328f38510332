"""Live models, a store that the room's tests share, and one exported model to look at."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pteforge
import pytest

NETS = Path(__file__).parent / "zoo" / "live_nets.py"


@pytest.fixture(scope="session")
def nets() -> ModuleType:
    """The models of zoo/live_nets.py."""
    spec = importlib.util.spec_from_file_location("live_nets", NETS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # strict tracing imports it by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store, so that equal stages of different tests run once."""
    return tmp_path_factory.mktemp("api") / "store"


@pytest.fixture(scope="session")
def net(nets: ModuleType):
    """The network that most tests lower, always with the same weights."""
    import torch

    torch.manual_seed(0)
    return nets.Net()


@pytest.fixture(scope="session")
def example():
    """An input of it."""
    import torch

    return (torch.linspace(-1, 1, 8).reshape(2, 4),)


@pytest.fixture(scope="session")
def exported(net, example, store: Path) -> pteforge.Exported:
    """The network, lowered with XNNPACK."""
    return pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store)
