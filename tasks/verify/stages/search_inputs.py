"""search_inputs: searches all inputs that a file takes for those on which it is furthest from its program."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ....configs.verification import InputSearch, VerifyBounds
from ....errors import VerificationFailed
from ...engine import kinds, stage
from ...programs.payload import write_delivered
from ...results.figures import Searched


class SearchInputs(stage.Stage, name="search_inputs"):
    """Succeeds whatever it finds, so that inputs on which the file is wrong are kept: `verify` judges them."""

    class Params(stage.Params):
        bounds: VerifyBounds
        asked: InputSearch
        host: str = ""  # CPU capability of the machine that the file runs on

    class Inputs(stage.Roles):
        file: kinds.PteFile
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        exported: Mapping[str, kinds.AtenProgram]  # by method, of `export`: which sizes it takes
        reference: Mapping[str, kinds.ToCompare]  # by method: what the file has to compute
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own

    class Outputs(stage.Roles):
        searched: kinds.Finding
        inputs: kinds.FoundInputs | None = None  # none where all outputs are equal

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs every payload whose backends this machine's runtime has."""
        from ...programs.program import load_program
        from ...programs.values import load_value, save_value
        from ..adversarial import Box, Judge, WorstInputs
        from ..running import Loadable, StoredProgram, runnable_payloads

        path, data_files = write_delivered(inputs.file, inputs.data, work)
        payloads = dict[str, Loadable]()
        with suppress(VerificationFailed):  # `verify` has passed, so that only a backend can be missing
            for name, program in runnable_payloads(path, data_files, {}):
                payloads[name] = replace(program, program=work.scratch / f"payload-{len(payloads)}.pte")
                shutil.copyfile(program.program, payloads[name].program)
        if not payloads:
            nothing = Searched(params.asked.seconds, cases=0, refused=0, differing=0, worst=None)
            return SearchInputs.Outputs(searched=work.store.put_json("finding", nothing.to_json()))
        signatures = next(iter(payloads.values())).signatures()
        boxes, judges = {}, {}
        for method, ref in inputs.examples.items():
            stored = load_value(ref, work.store)
            reference = StoredProgram(inputs.reference[method], work.store)
            judge = judges[method] = Judge(method, reference, params.bounds, stored.get("rounding", ""))
            exported = load_program(inputs.exported[method], work.store)
            boxes[method] = Box(signatures[method], exported, stored, judge)
        searched, found = WorstInputs(payloads, boxes, judges, params.asked, work.progressed).run()
        kept = found and save_value(found._asdict(), kind="examples/found", store=work.store)
        return SearchInputs.Outputs(searched=work.store.put_json("finding", searched.to_json()), inputs=kept)
