"""quantize: one method from ATen to ATen with quantized operators (PT2E), calibrated on examples or samples."""

from __future__ import annotations

from .. import kinds, stage


class Quantize(stage.Stage, name="quantize"):
    """Leaves a program that is quantized already, as by QAT, as it is."""

    class Params(stage.Params):
        # the targets that they come from, with the quantizers' options; the first choice first
        quantizers: tuple[stage.TargetParams, ...]

        def target_names(self) -> tuple[str, ...]:
            return tuple(quantizer.name for quantizer in self.quantizers)

    class Inputs(stage.Roles):
        program: kinds.AtenProgram  # of `export` or `source_transform`
        examples: kinds.Examples  # of `export`
        samples: kinds.Samples | None = None  # of `calibration`; without them the examples are observed

    class Outputs(stage.Roles):
        program: kinds.QuantizedProgram

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Calibrates and converts.

        Raises:
            TargetError: the quantizer finds nothing to quantize in the program.
            SourceError: a sample does not fit the program.
        """
        from ..codecs.program import load_program, save_program
        from ..codecs.values import count_values, load_value, load_values
        from ..programs.inputs import with_progress
        from ..programs.pt2e import quantize
        from ..programs.samples import checked_samples

        program = load_program(inputs.program, work.store)
        stored = load_value(inputs.examples, work.store)
        real = stored["inputs"][: len(stored["inputs"]) - stored["drawn"]]
        samples, count = real, len(real)
        if inputs.samples:
            samples = checked_samples(program, load_values(inputs.samples, work.store))
            count = count_values(inputs.samples, work.store)
        quantized = quantize(program, real[0], with_progress(samples, count, work.progressed), params.quantizers)
        return Quantize.Outputs(program=save_program(quantized, kind="program/quantized", store=work.store))
