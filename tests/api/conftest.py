"""Live models, a store that all tests share, and one exported model to look at."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pteforge
import pytest
import torch
from pteforge.tests.lowering import ZOO


@pytest.fixture(scope="session")
def nets() -> ModuleType:
    """The networks of tests/zoo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ZOO)
        return importlib.import_module("networks")


@pytest.fixture(autouse=True)
def builders(zoo: Path) -> ModuleType:
    """The builders of tests/zoo; what recipes and datasets name there can be found, too."""
    del zoo
    return importlib.import_module("builders")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store, so that equal stages of different tests run once."""
    return tmp_path_factory.mktemp("api") / "store"


@pytest.fixture(scope="session")
def net(nets: ModuleType):
    """The network that most tests lower, always with the same weights."""
    torch.manual_seed(0)
    return nets.Normed()


@pytest.fixture(scope="session")
def example():
    return (torch.linspace(-1, 1, 8).reshape(2, 4),)


@pytest.fixture(scope="session")
def ran():
    """Names of the stages of a result that ran."""
    return lambda result: {stage.stage for stage in result.stages if stage.status == "ran"}


@pytest.fixture(scope="session")
def exported(net, example, store: Path) -> pteforge.Exported:
    """The network, lowered with XNNPACK."""
    return pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store)
