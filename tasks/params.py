"""What each stage reads besides its input artifacts. All of it enters the stage's key; nothing names a machine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..configs.compile_options import CompileOptions
from ..configs.verify_bounds import VerifyBounds


class Params(BaseModel):
    """Base of all stage parameters: frozen, and no field is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CallableParams(Params):
    """One call of a function of the user's.

    Attributes:
        source: its key fields (see `tasks.keys.source`): name, code digests, versions, arguments, files.
    """

    source: dict[str, Any]


class PassParams(CallableParams):
    """What makes passes of a recipe.

    Attributes:
        method: name of the method, given to the callable together with its program; None where it takes neither.
    """

    method: str | None = None


class TargetParams(Params):
    """Which target with which options.

    Attributes:
        name: name of the target in the entry-point group ``pteforge.targets``.
        options: its options as JSON, defaults filled in.
    """

    name: str
    options: dict[str, Any] = {}


class QuantizeParams(Params):
    """Parameters of `quantize`.

    Attributes:
        quantizers: the targets that they come from, with the quantizers' options; the first choice first.
    """

    quantizers: tuple[TargetParams, ...]


class EdgeParams(Params):
    """Parameters of `edge`. Equal ones share one run, whichever target they come from.

    Attributes:
        preserve_for: the target whose operators stay undecomposed, with only those of its options that matter for
            that; None where everything is decomposed.
        passes_of: the target whose passes run, with only those of its options that matter for that; None: none run.
        preserve_operators: further operators to keep, such as ``aten.hardswish.default``.
        check_ir_validity: verify the edge dialect.
        skip_dim_order: leave memory formats to the operators instead of dim-order operators.
        decompose_affine: write out the arithmetic of torchao's quantization, since nothing is delegated.
        core_aten_exceptions: operators that need not be core ATen.
        passes: the recipe's own passes, which run after the target's.
    """

    preserve_for: TargetParams | None = None
    passes_of: TargetParams | None = None
    preserve_operators: tuple[str, ...] = ()
    check_ir_validity: bool = True
    skip_dim_order: bool = False
    decompose_affine: bool = False
    core_aten_exceptions: tuple[str, ...] = ()
    passes: tuple[PassParams, ...] = ()


class PartitionParams(Params):
    """Parameters of `partition`.

    Attributes:
        target: whose partitioners run.
        edge: how the program was made, to check that every preserved operator found its delegate.
    """

    target: TargetParams
    edge: EdgeParams


class PreprocessParams(Params):
    """Parameters of `preprocess`. The backends and compile specs stand in the partitioned programs.

    Attributes:
        targets: imported so that their backends are known to ExecuTorch.
    """

    targets: tuple[TargetParams, ...]


class MethodMemory(Params):
    """Memory planning of one method.

    Attributes:
        alloc_graph_input: plan memory for inputs.
        alloc_graph_output: plan memory for outputs.
    """

    alloc_graph_input: bool
    alloc_graph_output: bool


class CompileParams(Params):
    """Parameters of `compile`.

    Attributes:
        options: memory layout and alignment of the payload.
        edge: how the programs were made (dimension order decides on a pass).
        methods: memory planning by method, where it is not that of `options`.
        state_order: methods whose state is shared, those first that say what it is at first; empty where it is not.
        external_data: weights go to a file of their own.
    """

    options: CompileOptions
    edge: EdgeParams
    methods: dict[str, MethodMemory] = {}
    state_order: tuple[str, ...] = ()
    external_data: bool = False


class PackedPayload(Params):
    """A payload of a fat file.

    Attributes:
        name: what it is called.
        backends: the runtime backends that it may need.
    """

    name: str
    backends: tuple[str, ...]


class PackParams(Params):
    """Parameters of `pack`.

    Attributes:
        payloads: by preference, those that were made; the last one runs everywhere.
        methods: what each must have.
        alignment: bytes, of what lies outside of the container.
        executorch_version: what made them.
    """

    payloads: tuple[PackedPayload, ...]
    methods: tuple[str, ...]
    alignment: int
    executorch_version: str


class SerializeParams(Params):
    """Parameters of `serialize`.

    Attributes:
        form: ``plain``, the payload is the file; ``fat``, it has a container of payloads.
        methods: what the file must have.
        backends: the runtime backends that it may need.
        external_data: the weights go to a file of their own.
    """

    form: Literal["plain", "fat"]
    methods: tuple[str, ...]
    backends: tuple[str, ...]
    external_data: bool = False


class VerifyParams(Params):
    """Parameters of `verify`.

    Attributes:
        bounds: what counts as equal to eager.
        host: CPU capability of the machine that the file runs on.
    """

    bounds: VerifyBounds
    host: str = ""


class ReportParams(Params):
    """Parameters of `report`: what the provenance says besides what it reads.

    Attributes:
        model: name of the model.
        recipe: name of the recipe.
        specializations: what was lowered to, by payload name.
        left_out: names of specializations that could not be made and were not required.
        stage_keys: step name to stage key.
        versions: distribution to version.
        bounds: the verification bounds.
    """

    model: str
    recipe: str
    specializations: dict[str, TargetParams]
    left_out: tuple[str, ...] = ()
    stage_keys: dict[str, str]
    versions: dict[str, str]
    bounds: VerifyBounds
