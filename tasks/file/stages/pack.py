"""pack: the payloads of all specializations in one NFAT container, common weights stored once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from ....errors import FileFormatError, PteforgeError
from ....formats.nfat.contents import Description
from ....formats.nfat.golden import GoldenCase, GoldenCheck, golden_tensors, write_cases
from ....formats.nfat.pack import pack_v2
from ....formats.pte.contents import Method
from ....formats.pte.reader import map_file, read_pte
from ...engine import kinds, stage
from ...programs.payload import check_file, save_packed, write_payload
from ...results.figures import least_sqnr


class PackedPayload(stage.Params):
    """A payload of a fat file."""

    name: str
    backends: tuple[str, ...]  # the runtime backends that it may need


class SelfCheckParams(stage.Params):
    """How payloads check themselves."""

    cases: int  # most of each method
    drawn: bool  # whether random inputs may be among them
    repeats: int
    tolerance: float | None  # ratio of noise to signal; None for that of `min_sqnr_db`
    min_sqnr_db: float  # the bound of verification


class Pack(stage.Stage, name="pack"):
    """Packs payloads into a fat file."""

    distributions = ("flatbuffers",)

    class Params(stage.Params):
        # the payloads that could be made, by preference; the last one runs everywhere
        payloads: tuple[PackedPayload, ...]
        methods: tuple[str, ...]  # the methods that every payload must have
        alignment: int  # of the blobs, in bytes
        executorch_version: str  # the version that emitted the payloads
        share_transposed: bool = True  # whether a weight may be stored once for several layouts and types
        self_check: SelfCheckParams | None = None

    class Inputs(stage.Roles):
        payload: Mapping[str, kinds.PteFile]  # by name
        # by method, where payloads check themselves: examples of `export`, and what `edge` says of its state
        examples: Mapping[str, kinds.Examples] = field(default_factory=dict)
        state: Mapping[str, kinds.State] = field(default_factory=dict)

    class Outputs(stage.Roles):
        container: kinds.Container

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Packs the payloads. PteforgeError without a method, backend or self-check; FileFormatError beyond limits."""
        payloads = []
        for payload in params.payloads:
            path = work.scratch / f"{payload.name}.pte"
            write_payload(inputs.payload[payload.name], work.store, path)
            content = map_file(path)
            payloads.append((_description(payload, params, content), content))
        checks = {}
        if params.self_check:
            check = _golden_check(read_pte(payloads[-1][1]).methods, params.self_check, inputs, work)
            checks = {payload.name: check for payload in params.payloads}
        packed = pack_v2(payloads, alignment=params.alignment, share_transposed=params.share_transposed, checks=checks)
        return Pack.Outputs(container=save_packed(packed, work.store))


def _golden_check(
    methods: Iterable[Method], params: SelfCheckParams, inputs: Pack.Inputs, work: stage.Workspace
) -> GoldenCheck:
    """The check of all payloads, with bytes laid out for `methods`, whose signature all payloads have."""
    from ...programs.values import load_value

    stored = {name: load_value(ref, work.store) for name, ref in inputs.examples.items()}
    cases: list[GoldenCase] = []
    for method in (method for method in methods if method.name in stored):
        stateful = bool(work.store.read_json(inputs.state[method.name]))
        try:
            cases += _golden_cases(method, stored[method.name], params, stateful=stateful)
        except FileFormatError as error:
            raise PteforgeError(f"`output.self_check`: method {method.name!r} cannot check itself: {error}") from error
    outputs = [value for examples in stored.values() for value in examples["outputs"][0]]
    dtypes = {str(getattr(value, "dtype", "")).removeprefix("torch.") for value in outputs}
    dtypes |= {examples.get("rounding", "") for examples in stored.values()}
    least = min(least_sqnr(params.min_sqnr_db, dtype) for dtype in dtypes)
    tolerance = params.tolerance or 10 ** (-max(least, 0.0) / 20)
    return GoldenCheck(memoryview(write_cases(cases)), tolerance, params.repeats)


def _golden_cases(
    method: Method, examples: Mapping[str, Any], params: SelfCheckParams, *, stateful: bool
) -> list[GoldenCase]:
    if drawing := examples.get("random"):
        raise FileFormatError(f"eager draws random numbers ({', '.join(drawing)}), so it has no one answer")
    usable = len(examples["inputs"]) - (0 if params.drawn else examples["drawn"])
    calls = list(zip(examples["inputs"], examples["outputs"], strict=True))[: min(usable, params.cases)]
    cases = []
    for flat, returned in calls:
        inputs, outputs = golden_tensors(flat, method.inputs), golden_tensors(returned, method.outputs)
        cases.append(GoldenCase(method.name, inputs, outputs, stateful))
    return cases


def _description(payload: PackedPayload, params: Pack.Params, content: memoryview) -> Description:
    pte = read_pte(content)
    check_file(pte, methods=params.methods, backends=payload.backends, what=f"payload {payload.name!r}")
    return Description(
        name=payload.name,
        backends=pte.backends,
        methods=tuple(method.name for method in pte.methods),
        executorch_version=params.executorch_version,
    )
