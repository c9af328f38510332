"""The stages there are: name, module of the body, type of the params, and whether it needs a worker process."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum

from ..errors import InputError
from . import accuracy_params, numerics_params, params, source_params


@dataclass(frozen=True, slots=True)
class StageKind:
    """A stage as plans name it.

    Attributes:
        module: module whose function `run` is the body (a `tasks.stage.Stage`).
        params: type of its params.
        isolated: runs in a worker process; otherwise it needs neither torch nor ExecuTorch and runs where it is called.
        distributions: packages whose versions its result depends on.
    """

    module: str
    params: type[params.Params]
    isolated: bool = True
    distributions: tuple[str, ...] = ("torch", "executorch", "torchao")


_STAGES = f"{__package__}.stages"


class StageName(Enum):
    """Every stage, in the order in which a model goes through them."""

    EXPORT = "export"
    SOURCE_TRANSFORM = "source_transform"
    CALIBRATION = "calibration"
    QUANTIZE = "quantize"
    EDGE = "edge"
    PARTITION = "partition"
    PREPROCESS = "preprocess"
    COMPILE = "compile"
    PACK = "pack"
    SERIALIZE = "serialize"
    LADDER = "ladder"
    BISECT = "bisect"
    VERIFY = "verify"
    BASELINE = "baseline"
    EVALUATE = "evaluate"
    GATE = "gate"
    REPORT = "report"

    @classmethod
    def named(cls, name: str) -> StageName:
        """The stage of that name; raises InputError, with one that is close or the names there are."""
        try:
            return cls(name)
        except ValueError:
            known = [stage.value for stage in cls]
            if close := difflib.get_close_matches(str(name).lower().removeprefix("to_"), known, n=1):
                raise InputError(f"there is no stage {name!r}; did you mean {close[0]!r}?") from None
            raise InputError(f"there is no stage {name!r}; stages: {', '.join(known)}") from None

    @property
    def position(self) -> int:
        """Its place in the order of stages."""
        return list(StageName).index(self)

    @property
    def kind(self) -> StageKind:
        """What the stage is made of."""
        return _KINDS[self]


_KINDS = {
    StageName.EXPORT: StageKind(f"{_STAGES}.export", source_params.ExportParams),
    StageName.SOURCE_TRANSFORM: StageKind(
        f"{_STAGES}.source_transform",
        source_params.SourceTransformParams,
        distributions=("torch", "executorch", "torchao", "coremltools"),  # the last one makes codebooks
    ),
    StageName.CALIBRATION: StageKind(f"{_STAGES}.calibration", source_params.CalibrationParams),
    StageName.QUANTIZE: StageKind(f"{_STAGES}.quantize", params.QuantizeParams),
    StageName.EDGE: StageKind(f"{_STAGES}.edge", params.EdgeParams),
    StageName.PARTITION: StageKind(f"{_STAGES}.partition", params.PartitionParams),
    StageName.PREPROCESS: StageKind(f"{_STAGES}.preprocess", params.PreprocessParams),
    StageName.COMPILE: StageKind(f"{_STAGES}.compile", params.CompileParams),
    StageName.PACK: StageKind(f"{_STAGES}.pack", params.PackParams, distributions=("flatbuffers",)),
    StageName.SERIALIZE: StageKind(f"{_STAGES}.serialize", params.SerializeParams, isolated=False, distributions=()),
    StageName.LADDER: StageKind(f"{_STAGES}.ladder", numerics_params.LadderParams),
    StageName.BISECT: StageKind(f"{_STAGES}.bisect", numerics_params.BisectParams),
    StageName.VERIFY: StageKind(f"{_STAGES}.verify", params.VerifyParams),
    StageName.BASELINE: StageKind(f"{_STAGES}.baseline", accuracy_params.BaselineParams),
    StageName.EVALUATE: StageKind(f"{_STAGES}.evaluate", accuracy_params.EvaluateParams),
    StageName.GATE: StageKind(f"{_STAGES}.gate", accuracy_params.GateParams, isolated=False, distributions=()),
    StageName.REPORT: StageKind(f"{_STAGES}.report", params.ReportParams, isolated=False, distributions=()),
}
