"""For people who drive `to_edge_transform_and_lower` themselves: fat delegates by a partitioner and its backend.

Importing this imports torch and ExecuTorch. README.md says how it works.
"""

from __future__ import annotations

from ..configs.recipe import Specialization
from .backend import NfatBackend
from .partitioner import NativePartitioner

__all__ = ["NativePartitioner", "NfatBackend", "Specialization"]
