"""prove: runs a payload on a place, a runtime besides that of this process, and compares every method with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ....configs.verification import VerifyBounds
from ....formats.pte.reader import open_pte
from ...engine import kinds, stage
from ...programs.payload import write_delivered

if TYPE_CHECKING:
    from ...results.figures import Figures

PYTHON_PLACE = "pteforge.runtime.place"  # the module that runs files with the ExecuTorch of an environment


class PlaceParams(stage.Params):
    """A place: how it is reached, and what it is."""

    library: tuple[str, ...] = ()  # paths of shared libraries to load into the process
    command: tuple[str, ...] = ()  # does what `nfat_run` does; empty for a library
    env: dict[str, str] = Field(default_factory=dict)
    digests: dict[str, str] = Field(default_factory=dict)  # SHA-256 of libraries and of the command's files, by name
    about: str = ""  # device and driver, as the place says
    backends: tuple[str, ...] | None = None  # that the command's runtime can use; None where only trying shows

    @property
    def machine(self) -> str:
        """Device and driver in one line, which tells apart times of several machines."""
        return ", ".join(self.about.splitlines())

    @property
    def is_python(self) -> bool:
        """Whether it is another environment's ExecuTorch, whose Python runtime measures no memory."""
        return PYTHON_PLACE in self.command

    @property
    def emulated(self) -> bool:
        """Whether it is a core that QEMU emulates, which says nothing of times."""
        return bool(self.command) and Path(self.command[0]).name.startswith("qemu-")

    def lacks(self, backends: Iterable[str]) -> str:
        """Why a command cannot run a file with these backends; empty if it can, or only trying shows."""
        lacking = sorted(set(backends) - set(self.backends)) if self.backends is not None else []
        return f"needs {', '.join(lacking)}, which the place does not have" if lacking else ""


class Prove(stage.Stage, name="prove"):
    """Runs in a process of its own, so that a place that crashes or hangs is this stage's failure, and no other's."""

    class Params(stage.Params):
        place: PlaceParams
        bounds: VerifyBounds  # the largest allowed differences from eager

    class Inputs(stage.Roles):
        file: kinds.PteFile  # a plain file, or a payload of a fat one
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own
        # of `export`, methods that nothing quantizes: which outputs are as exact as eager's
        floating: Mapping[str, kinds.AtenProgram] = field(default_factory=dict)

    class Outputs(stage.Roles):
        proofs: kinds.Finding
        memory: kinds.Finding | None = None  # of a place with `nfat_run`

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs the file if the place has its backends; raises VerificationFailed if it fails, or an output is wrong."""
        from ...programs.values import load_value
        from ..running import load_libraries, missing_backends, without_device
        from ..verification import judged_by_eager_error, verify_file

        path, data_files = write_delivered(inputs.file, inputs.data, work)
        examples = {method: load_value(ref, work.store) for method, ref in inputs.examples.items()}
        place, backends = params.place, open_pte(path).backends

        def judge(verify: Callable[[Mapping[str, Mapping[str, Any]]], Figures]) -> Figures:
            return judged_by_eager_error(verify, examples, params.bounds, inputs.floating, work.store)

        figures, memory, no_device = None, [], False
        if place.command:
            from ..device import device_program, verify_program
            from ..measure import measure_memory

            missing = place.lacks(backends)
            if not missing:
                with device_program(place.command, path, data_files, place.env) as program:
                    figures = judge(partial(verify_program, program, bounds=params.bounds))
                    memory = [] if place.is_python else measure_memory(program, examples)
        else:
            load_libraries(place.library, place.env)
            missing, no_device = missing_backends(backends), bool(without_device(backends))
            verify = partial(verify_file, path, bounds=params.bounds, data_files=data_files)
            figures = None if missing else judge(verify)
        brief = figures and figures.brief().to_json()
        proof = {"about": place.about, "figures": brief, "not_run": missing, "no_device": no_device}
        return Prove.Outputs(
            proofs=work.store.put_json("finding", [proof]),
            memory=work.store.put_json("finding", [use.to_json() for use in memory]) if memory else None,
        )
