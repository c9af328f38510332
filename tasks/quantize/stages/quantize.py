"""quantize: one method from ATen to ATen with quantized operators (PT2E), calibrated on examples or samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from pydantic import Field

from ....errors import TargetError
from ...engine import kinds, stage
from ...results.quantization import Quantization
from ...targets import TargetParams
from ...targets.find import target_classes


class Quantize(stage.Stage, name="quantize"):
    """Leaves a program that is quantized already, as by QAT, as it is."""

    class Params(stage.Params):
        # the targets that they come from, with the quantizers' options; the first choice first
        quantizers: tuple[TargetParams, ...]
        # by position of the quantizer, the function that says of each node whether to quantize it
        filters: dict[int, stage.CallableParams] = Field(default={})
        # the recipe's own functions over the module: before and after observers enter it, before and after they leave
        pre_prepare_passes: tuple[stage.CallableParams, ...] = ()
        post_prepare_passes: tuple[stage.CallableParams, ...] = ()
        pre_convert_passes: tuple[stage.CallableParams, ...] = ()
        post_convert_passes: tuple[stage.CallableParams, ...] = ()
        exclude: tuple[str, ...] = ()  # patterns of the modules to leave in floating point
        smooth: bool = False  # whether scales are moved between the inputs and the weights of layers
        correct_biases: bool = False  # whether biases make up for what weights lose on average
        at_least: float | None = None  # share of the weights' elements that must become integers
        one_of_several: bool = False  # whether the model has other methods: this one may only look tokens up

        def plugins(self) -> tuple[type[stage.Plugin], ...]:
            return target_classes(quantizer.name for quantizer in self.quantizers)

    class Inputs(stage.Roles):
        program: kinds.AtenProgram  # of `export`, `source_transform` or `fold_batch_norms`
        examples: kinds.Examples  # of `export`
        samples: kinds.Samples | None = None  # of `calibration`; without them the examples are observed
        # of `export`, where `program` was exported for samples of any batch size, which the result is not for
        shaped: kinds.AtenProgram | None = None
        transformed: kinds.Finding | None = None  # of `source_transform`, what it reached
        # of `export`, the other methods, by name, where methods share their state: it is no constant here
        others: Mapping[str, kinds.AtenProgram] = field(default_factory=dict)

    class Outputs(stage.Roles):
        program: kinds.QuantizedProgram
        calibration: kinds.ObservedSamples  # how many samples or examples
        quantization: kinds.Finding

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Calibrates and converts.

        Raises TargetError if the quantizer finds nothing to quantize, or less than the recipe asks for; SourceError if
        a sample does not fit the program, or a function of the recipe fails.
        """
        from ...export.eager import written_buffers
        from ...programs.graphs import only_looks_up, why_nothing_to_quantize
        from ...programs.program import load_program, save_program
        from ...programs.values import count_values, load_value, load_values
        from ...usercode.inputs import with_progress
        from ..pt2e import quantize
        from ..reached import Asked, quantization_of
        from ..samples import checked_samples

        program = load_program(inputs.program, work.store)
        stored = load_value(inputs.examples, work.store)
        real = stored["inputs"][: len(stored["inputs"]) - stored["drawn"]]
        samples, count = real, len(real)
        if inputs.samples:
            samples = checked_samples(program, load_values(inputs.samples, work.store))
            count = count_values(inputs.samples, work.store)
        state = set[str]()  # buffers that other methods change
        for ref in inputs.others.values():
            state |= written_buffers(load_program(ref, work.store))
        try:
            quantized, changes = quantize(
                program,
                real[0],
                with_progress(samples, count, work.progressed),
                params.quantizers,
                passes={name: getattr(params, name) for name in type(params).model_fields if name.endswith("_passes")},
                filters=params.filters,
                exclude=params.exclude,
                shaped=load_program(inputs.shaped, work.store) if inputs.shaped else None,
                state=state,
                count=count,
                smooths=params.smooth,
                corrects=params.correct_biases,
            )
        except TargetError as error:
            if not (params.one_of_several and only_looks_up(program)):
                if why := why_nothing_to_quantize(program):
                    error.args = (f"{error}; {why}",)
                raise
            quantized, changes = program, {}
        observed = f"{count} {'sample' if inputs.samples else 'example'}{'' if count == 1 else 's'}"
        reached = quantization_of(quantized, program, Asked(params.quantizers, params.filters, params.exclude))
        if inputs.transformed:
            (transformed,) = Quantization.found(work.store.read_json(inputs.transformed))
            reached = reached.after(transformed)
        reached = replace(reached, **changes)
        reached.check(params.at_least, "quantize.at_least")
        return Quantize.Outputs(
            program=save_program(quantized, kind="program/quantized", store=work.store),
            calibration=work.store.put_json("report/calibration", observed),
            quantization=work.store.put_json("finding", [reached.to_json()]),
        )
