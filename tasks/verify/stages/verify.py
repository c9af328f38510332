"""verify: runs the produced file on the ExecuTorch runtime and compares every method with eager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial

from ....configs.contract_file import Runtime
from ....configs.verification import VerifyBounds
from ....errors import VerificationFailed
from ....formats.contract import judge, read_needs
from ....formats.pte.reader import open_pte
from ...engine import kinds, stage
from ...programs.payload import write_delivered


class Verify(stage.Stage, name="verify"):
    """Runs every payload of a fat file whose backends this machine's runtime has."""

    class Params(stage.Params):
        bounds: VerifyBounds  # the largest allowed differences from eager
        host: str = ""  # CPU capability of the machine that the file runs on
        on_examples: tuple[str, ...] = ()  # methods whose random inputs are compared with the quantized program
        runtime: Runtime | None = None  # that has to be able to load the file

    class Inputs(stage.Roles):
        file: kinds.PteFile
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        constants: kinds.Constants  # of `export`
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own
        # by method, of `edge`: run in its place if the runtime lacks its backend, or if only Python has kernels of the
        # target's operators; none where the file has to be run
        edge: Mapping[str, kinds.EdgeProgram] = field(default_factory=dict)
        quantized: Mapping[str, kinds.QuantizedProgram] = field(default_factory=dict)  # of the methods `on_examples`
        notes: Mapping[str, kinds.Notes] = field(default_factory=dict)  # by method, of `source_transform`
        calibration: Mapping[str, kinds.ObservedSamples] = field(default_factory=dict)  # by method, of `quantize`
        samples: Mapping[str, kinds.Samples] = field(default_factory=dict)  # by method, of `calibration`
        exported: Mapping[str, kinds.AtenProgram] = field(default_factory=dict)  # of `export`, the methods of `samples`
        # of `export`, methods that nothing quantizes: which outputs are as exact as eager's
        floating: Mapping[str, kinds.AtenProgram] = field(default_factory=dict)
        found: Mapping[str, kinds.FoundInputs] = field(default_factory=dict)  # of `search_inputs`, for any file
        reference: Mapping[str, kinds.ToCompare] = field(default_factory=dict)  # with `found`: what the file computes

    class Outputs(stage.Roles):
        figures: kinds.Finding

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs the file, or the edge programs that it was made from.

        Raises VerificationFailed if the runtime that the recipe names cannot load the file, or an output is outside the
        bounds; nothing is recorded, so a repaired run verifies again.
        """
        from ...programs.values import load_value, load_values
        from .. import verification
        from ..adversarial import Found
        from ..running import EdgePrograms, missing_backends

        path, data_files = write_delivered(inputs.file, inputs.data, work)
        pte = open_pte(path)
        if runtime := params.runtime:
            lacks = judge(read_needs(path, data_files), runtime.release, runtime.operators, runtime.backends).problems
            if lacks:
                raise VerificationFailed(f"the runtime {runtime.name} cannot load the file: {'; '.join(lacks)}")
        examples = {method: load_value(ref, work.store) for method, ref in inputs.examples.items()}
        for name, ref in inputs.samples.items():
            samples = load_values(ref, work.store)
            examples[name] = verification.with_samples(examples[name], samples, inputs.exported[name], work.store)
        try:
            if inputs.edge and (missing := missing_backends(pte.backends)):
                figures = verification.verify_programs(
                    inputs.edge, examples, params.bounds, missing, work.store, params.on_examples
                )
            else:
                drawn = params.bounds.drawn_inputs
                of_quantized = {
                    name: verification.as_quantized(examples[name], inputs.quantized[name], drawn, work.store)
                    for name in params.on_examples
                }
                edge = EdgePrograms(inputs.edge, work.store) if inputs.edge else None
                verify = partial(verification.verify_file, path, bounds=params.bounds, data_files=data_files)
                verify = partial(verify, on_examples=of_quantized, edge=edge)
                figures = verification.judged_by_eager_error(
                    verify, examples, params.bounds, inputs.floating, work.store
                )
                found = [Found(**load_value(ref, work.store)) for ref in inputs.found.values()]
                references = (inputs.exported, inputs.reference)
                verification.verify_found(path, found, references, examples, params.bounds, work.store, data_files)
            verification.check_sizes(pte, examples)
        except VerificationFailed as error:
            if drawing := sorted({name for stored in examples.values() for name in stored.get("random", ())}):
                error.args = (f"{error}; eager draws random numbers ({', '.join(drawing)})",)
            raise
        verification.check_constants(path, load_value(inputs.constants, work.store))
        calibration = {name: work.store.read_json(ref) for name, ref in inputs.calibration.items()}
        notes = [note for stored in examples.values() for note in stored.get("notes", ())]
        notes += verification.same_for_all(examples, params.bounds)
        notes += [note for ref in inputs.notes.values() for note in work.store.read_json(ref)]
        figures = replace(figures, calibration=calibration, notes=(*figures.notes, *notes))
        return Verify.Outputs(figures=work.store.put_json("finding", figures.to_json()))
