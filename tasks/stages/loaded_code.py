"""What a stage that runs the user's code loads on the way, for its key."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ..keys.observed import observed_distributions, observed_modules
from ..stage import Workspace


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """What is loaded after a certain moment.

    Attributes:
        modules: names in ``sys.modules`` at that moment.
        path: ``sys.path`` at that moment.
    """

    modules: frozenset[str]
    path: tuple[str, ...]

    @classmethod
    def from_now(cls) -> LoadedCode:
        """From this moment on."""
        return cls(frozenset(sys.modules), tuple(sys.path))

    def save(self, work: Workspace) -> ArtifactRef:
        """Stores the local modules and installed packages that have been loaded since (model/observed)."""
        before = set(self.modules)
        modules = observed_modules(before, work.python_path, self.path)
        names = sorted({*modules, *observed_distributions(before, work.python_path)})
        return work.store.put_artifact("model/observed", canonical_json(names))
