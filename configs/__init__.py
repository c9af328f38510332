"""What a user writes: models, recipes and zoos, and how they are read from YAML."""

from __future__ import annotations

from .definition import MethodDefinition, ModelDefinition
from .load import LoadedZoo, load_zoo
