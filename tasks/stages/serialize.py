"""serialize: writes the delivered file, and reads it back as a check."""

from __future__ import annotations

from typing import Literal

from ...formats.pte.reader import map_file, open_pte
from .. import kinds, stage
from ..codecs.payload import load_packed, save_data_file, save_payload, write_payload
from ..programs.delivery import check_file


class Serialize(stage.Stage, name="serialize"):
    """The plain form is the payload itself, and needs no ExecuTorch; the fat form is a program of its own."""

    isolated = False
    distributions = ()

    class Params(stage.Params):
        # ``plain``, the payload is the file; ``fat``, the file has a container of payloads
        form: Literal["plain", "fat"]
        methods: tuple[str, ...]  # the methods that the file must have
        backends: tuple[str, ...]  # the runtime backends that it may need
        external_data: bool = False  # the weights go to a file of their own

    class Inputs(stage.Roles):
        # for the plain form, the file; for the fat form, the payload whose signatures it takes over
        payload: kinds.PteFile
        container: kinds.Container | None = None  # for the fat form, all payloads
        data: kinds.PtdFile | None = None  # the weights of a plain file that keeps them in a file of their own

    class Outputs(stage.Roles):
        file: kinds.PteFile
        data: kinds.PtdFile | None = None  # its weights, where they go to a file of their own

    @classmethod
    def runs_isolated(cls, params: Params) -> bool:
        """The fat form is written by ExecuTorch."""
        return params.form == "fat"

    @classmethod
    def versions_of(cls, params: Params) -> tuple[str, ...]:
        """The plain form depends on no package."""
        return ("torch", "executorch") if params.form == "fat" else ()

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Writes the file.

        Raises:
            PteforgeError: the file lacks a method, or needs a backend that its target does not name.
        """
        path = work.scratch / "model.pte"
        if params.form == "plain":
            write_payload(inputs.payload, work.store, path)
            outputs = Serialize.Outputs(file=inputs.payload, data=inputs.data if params.external_data else None)
        else:
            from ..programs.fat_program import write_fat

            assert inputs.container is not None  # noqa: S101 - the fat form has one
            packed = load_packed(inputs.container, work.store)
            signature_path = work.scratch / "signature.pte"
            write_payload(inputs.payload, work.store, signature_path)
            data_path = work.scratch / "model.ptd" if params.external_data else None
            write_fat(packed, map_file(signature_path), path, data_path=data_path)
            outputs = Serialize.Outputs(
                file=save_payload(map_file(path), store=work.store),
                data=save_data_file(map_file(data_path), work.store) if data_path else None,
            )
        check_file(open_pte(path), methods=params.methods, backends=params.backends, what="the emitted file")
        return outputs
