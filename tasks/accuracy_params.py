"""What the stages read that score files."""

from __future__ import annotations

from typing import Any

from .params import Params


class BaselineParams(Params):
    """Parameters of `baseline`. No recipe takes part, so that recipes share it.

    Attributes:
        source: key fields of the model's source (see `tasks.keys.source`).
        evaluator: key fields of the evaluator: its code, arguments and files.
        seed: seeds torch, numpy and random before the builder runs and before the evaluator does.
        host: CPU capability of the machine, since eager's figures depend on it.
    """

    source: dict[str, Any]
    evaluator: dict[str, Any]
    seed: int
    host: str = ""


class EvaluateParams(Params):
    """Parameters of `evaluate`.

    Attributes:
        evaluator: key fields of the evaluator (see `tasks.keys.source`): its code, arguments and files.
        seed: seeds torch, numpy and random before the evaluator runs.
        host: CPU capability of the machine that the file runs on.
    """

    evaluator: dict[str, Any]
    seed: int
    host: str = ""


class GateParams(Params):
    """Parameters of `gate`: the bounds, which nothing else reads, so that other ones score nothing again.

    Attributes:
        evaluator: what scores are called after.
        floor: least score, if any.
        max_drop: how far scores may be below eager's, if they are compared.
    """

    evaluator: str
    floor: float | None
    max_drop: float | None
