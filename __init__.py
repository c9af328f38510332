"""pteforge lowers zoos of PyTorch models to ExecuTorch, with every stage cached by content and every file verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PteforgeError

if TYPE_CHECKING:
    from .api.export import export
    from .api.recipes import recipe_from_executorch
    from .api.result import Exported
    from .configs.definition import MethodCall, MethodDefinition, ModelDefinition

__version__ = "0.1.0.dev0"

__all__ = [
    "Exported",
    "MethodCall",
    "MethodDefinition",
    "ModelDefinition",
    "PteforgeError",
    "__version__",
    "export",
    "recipe_from_executorch",
]

_LAZY = {
    "Exported": "api.result",
    "MethodCall": "configs.definition",
    "MethodDefinition": "configs.definition",
    "ModelDefinition": "configs.definition",
    "export": "api.export",
    "recipe_from_executorch": "api.recipes",
}


def __getattr__(name: str) -> Any:
    """Imports what takes long, such as torch, when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - not at every start of the command line

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
