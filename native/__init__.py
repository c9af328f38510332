"""Fat delegates for people who call `to_edge_transform_and_lower` themselves; imports torch and ExecuTorch."""

from ..configs.recipe import Specialization
from .backend import NfatBackend
from .partitioner import NativePartitioner

__all__ = ["NativePartitioner", "NfatBackend", "Specialization"]


def __dir__() -> list[str]:
    return __all__
