"""pteforge lowers zoos of PyTorch models to ExecuTorch, with every stage cached by content and every file verified."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import PteforgeError
from .tasks.engine.keys import loaded as _loaded  # noqa: F401 - looks at pteforge's files before more are loaded

if TYPE_CHECKING:
    from . import configs
    from .api.export import export
    from .api.recipes import recipe_from_executorch
    from .api.result import Exported
    from .api.weights import load_weights
    from .configs.model import MethodCall, MethodDefinition, ModelDefinition
    from .flows.prefect.server import PteforgeStore

__version__ = "0.1.0"

__all__ = [
    "Exported",
    "MethodCall",
    "MethodDefinition",
    "ModelDefinition",
    "PteforgeError",
    "PteforgeStore",
    "__version__",
    "configs",
    "export",
    "load_weights",
    "recipe_from_executorch",
]

_LAZY = {
    "Exported": "api.result",
    "MethodCall": "configs.model",
    "MethodDefinition": "configs.model",
    "ModelDefinition": "configs.model",
    "PteforgeStore": "flows.prefect.server",
    "export": "api.export",
    "load_weights": "api.weights",
    "recipe_from_executorch": "api.recipes",
}


def __getattr__(name: str) -> Any:
    """Imports what takes long, such as torch and Prefect, when it is first used."""
    if name == "configs":
        return importlib.import_module(".configs", __name__)
    if name in _LAZY:
        module = f".{_LAZY[name]}"
        if not module.startswith(".api."):  # builders of models need no more than configs.model
            return getattr(importlib.import_module(module, __name__), name)
        from .runtime.quiet import quiet  # noqa: PLC0415 - for these only

        with quiet():  # torchao and others talk while they are imported
            return getattr(importlib.import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, and public modules once they are imported. `prefect block register` looks for blocks among them."""
    return sorted({*__all__, *({"evaluators", "native", "runtime"} & globals().keys())})
