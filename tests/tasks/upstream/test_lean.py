"""Lowering with the patches that save time gives the same files as without."""

from cProfile import Profile
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
    *((f"builders:{name}", FAT) for name in ("sequences", "neighbors", "blocks_of_any_batch")),
    *(("builders:conv_net", recipe(name)) for name in LOWERING_HERE if name != "cortex_m"),
    ("builders:conv_net", recipe("cortex_m", quantize={"quantizer": "cortex_m"})),
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


def test_unchanged_graphs_are_not_traced(lower_fresh, monkeypatch):
    """XNNPACK's passes, which find nothing to do, trace a partition of any batch once or twice, not 17 times."""
    from executorch.exir.pass_base import _ExportPassBase

    trace, traced = _ExportPassBase.call_submodule, list[str]()

    def count(given: Any, *args: Any) -> Any:
        traced.append(type(given).__name__)
        return trace(given, *args)

    monkeypatch.setattr(_ExportPassBase, "call_submodule", count)
    lower_fresh("builders:layer_of_any_batch", XNNPACK, until="partition")
    before = len(traced)
    lower_fresh("builders:layer_of_any_batch", XNNPACK, until="preprocess")
    assert 0 < len(traced) - 2 * before <= 4


@pytest.mark.slow
def test_work_grows_with_layers(lower_fresh, monkeypatch):
    """Stages call at most in proportion to the layers of a model: each of four more costs what each of two did."""
    from pteforge.tests import lowering

    body, calls = lowering.run_stage, dict[tuple[str, int], int]()

    def count(work: Any) -> Any:
        profile = Profile()
        try:
            return profile.runcall(body, work)
        finally:
            stage = work["call"]["id"]["stage"]
            calls[stage, layers] = sum(entry.callcount for entry in profile.getstats())

    monkeypatch.setattr(lowering, "run_stage", count)
    for layers in (1, 2, 4, 8):  # the first one fills caches
        source = {"builder": "builders:blocks_of_any_batch", "kwargs": {"count": layers}}
        lower_fresh(source, XNNPACK, until="compile")
    for stage in ("export", "edge", "partition", "preprocess", "compile"):
        few, some, many = (calls[stage, layers] for layers in (2, 4, 8))
        assert (stage, many - some) <= (stage, 1.2 * 2 * (some - few))


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
