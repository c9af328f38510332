"""Lowering with the patches that save time gives the same files as without."""

from typing import Any

import pytest
from pteforge.tasks.targets.find import find_target_class, target_names
from pteforge.tasks.upstream import SWITCH, lean_lowering
from pteforge.tests.lowering import XNNPACK, recipe

STATIC = {"quantize": {"quantizer": "xnnpack"}}
FAT = recipe("xnnpack", "portable")
LOWERING_HERE = [
    name
    for name, target in ((name, find_target_class(name)) for name in target_names())
    if target.reproducible and target.available() is None
]

# What the patches have conditions for: sizes, submodules, constants, several methods, state, quantization.
FEW = [
    ("builders:conv_net", XNNPACK),
    ("builders:layer_of_any_batch", XNNPACK),
    ("builders:nested_branches", XNNPACK),
    ("builders:two_methods", FAT),
]
MANY = [
    *((f"builders:{name}", FAT) for name in ("images", "mlp", "constant", "two_partitions", "shuffle", "hardswish")),
    *((f"builders:{name}", FAT) for name in ("counter", "smoothing", "rows", "sums", "mixed_inputs", "nested_outputs")),
    *((f"builders:{name}", FAT) for name in ("tied", "cached", "waves", "nested_waves", "stack", "two_named_stacks")),
    *((f"builders:{name}", FAT) for name in ("other_types", "optional_input", "size_output", "readers_and_writers")),
    *(("builders:conv_net", recipe(name)) for name in LOWERING_HERE),
    ("builders:conv_net", recipe("xnnpack", **STATIC)),
    ("builders:two_networks", recipe("xnnpack", **STATIC)),
    ("builders:conv_net", recipe("xnnpack", compile={"generate_etrecord": True, "emit_stacktrace": True})),
]


@pytest.mark.parametrize(
    ("builder", "made"), [*FEW, *(pytest.param(*case, marks=pytest.mark.nightly) for case in MANY)]
)
def test_same_files(lower, lower_fresh, monkeypatch, builder, made):
    """The file and every program on the way to it are the same with and without the patches."""
    lean = lower(builder, made, until="serialize")
    monkeypatch.setenv(SWITCH, "plain")
    plain = lower_fresh(builder, made, until="serialize")
    assert plain.file == lean.file
    assert plain.identities == lean.identities


def test_switch(monkeypatch):
    """The environment variable turns all patches off; afterwards nothing is left of them in any case."""
    from executorch.exir.pass_base import _ExportPassBase
    from torch._export import utils
    from torch._ops import OperatorBase
    from torch.fx import GraphModule
    from torch.fx.traceback import NodeSource

    def state() -> Any:
        owners = GraphModule, NodeSource, OperatorBase, _ExportPassBase
        return [dict(vars(owner)) for owner in owners], utils._collect_all_valid_cia_ops

    plain = state()
    with lean_lowering():
        assert state() != plain
    assert state() == plain
    monkeypatch.setenv(SWITCH, "plain")
    with lean_lowering():
        assert state() == plain
