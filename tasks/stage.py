"""The stage contract: named input artifacts and frozen params in, named output artifacts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ..artifacts.local_store import LocalStore
from ..artifacts.ref import ArtifactRef
from .params import Params
from .progress import Progressed, unheard

P_contra = TypeVar("P_contra", bound=Params, contravariant=True)


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a stage's body may touch.

    Attributes:
        store: where inputs are read and outputs are put.
        scratch: an empty folder that goes away with the stage.
        folder: the zoo file's folder: where a model's builder runs.
        python_path: folders that come first on ``sys.path``: the zoo's.
        program_file: the `.pt2` file of a model that comes as one.
        progressed: to be told how many samples of how many are done, by a stage that takes many.
    """

    store: LocalStore
    scratch: Path
    folder: Path
    python_path: tuple[Path, ...] = ()
    program_file: Path | None = None
    progressed: Progressed = unheard


class Stage(Protocol[P_contra]):
    """One step of the lowering: pure, so that its outputs can be found again by key.

    A body reads its inputs and its params and nothing else. It runs in a process of its own (see `tasks.workers`),
    except for the few stages that need neither torch nor ExecuTorch.
    """

    def __call__(
        self, inputs: Mapping[str, ArtifactRef], params: P_contra, work: Workspace
    ) -> Mapping[str, ArtifactRef]:
        """Runs the stage.

        Args:
            inputs: role name to artifact; every object of it is in `work.store`.
            params: what else it depends on.
            work: where to read and write.

        Returns:
            Role name to artifact; every object of it has been put into `work.store`.
        """
        ...
