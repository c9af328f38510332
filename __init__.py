"""pteforge lowers zoos of PyTorch models to ExecuTorch, with every stage cached by content and every file verified."""

from __future__ import annotations

from .configs.definition import MethodDefinition, ModelDefinition
from .errors import PteforgeError

__version__ = "0.1.0.dev0"

__all__ = ["MethodDefinition", "ModelDefinition", "PteforgeError", "__version__"]
