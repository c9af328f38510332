"""`edge` and `partition` on graphs without weights: results are those made with weights, and serve other weights."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from pteforge.artifacts.store import open_store
from pteforge.errors import TargetError
from pteforge.tasks.backend.stages.edge import Edge
from pteforge.tasks.backend.stages.partition import Partition
from pteforge.tasks.programs.binding import bind, graph_of
from pteforge.tasks.programs.program import save_program
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.targets.xnnpack import Xnnpack
from pteforge.tests.lowering import PORTABLE, XNNPACK, Lowered, recipe

VULKAN, MLX, FAT = recipe("vulkan"), recipe("mlx"), recipe("xnnpack", "portable")
DYNAMIC = recipe("xnnpack", quantize={"quantizer": "xnnpack", "options": {"dynamic": True}})
STATIC = recipe("xnnpack", quantize={"quantizer": "xnnpack"})
SHARED = recipe("xnnpack", compile={"share_mutable_buffers": True})
DEBUGGING = recipe("xnnpack", compile={"generate_etrecord": True, "emit_stacktrace": True})

FEW = [("conv_net", PORTABLE), ("conv_net", XNNPACK), ("conv_net", MLX), ("tied", XNNPACK), ("counter", PORTABLE)]
MODELS = ("recurrent", "tied", "cached", "counter", "folded", "branches_of_layers", "layer_of_any_batch", "other_types")
MANY = [
    *((model, made) for model in MODELS for made in (FAT, VULKAN)),
    *((model, MLX) for model in ("recurrent", "tied", "cached", "branches_of_layers", "layer_of_any_batch")),
    *(("stack", made) for made in (DYNAMIC, recipe("xnnpack", source_transforms=[{"torchao": "int8_weight_only"}]))),
    *(("conv_net", made) for made in (VULKAN, STATIC, DEBUGGING, recipe("xnnpack", output={"external_data": True}))),
    ("cached", SHARED),
]


def _reasons(lowered: Lowered) -> list[str]:
    """Why its edge and partition stages took the weights; empty strings where they did not."""
    calls = [done.call for done in lowered.steps.values() if done.call.stage in (Edge, Partition)]
    for call in calls:
        assert call.inputs["program"].kind.startswith("program/" if call.params.takes_weights else "graph/")
    return [call.params.takes_weights for call in calls]


@pytest.fixture
def lower_with_weights(lower_fresh, monkeypatch):
    """Lowers a model without graphs of its programs."""

    def lowered(*args: Any, **options: Any) -> Lowered:
        with monkeypatch.context() as patched:
            for stage in (Edge, Partition):
                patched.setattr(stage, "takes_weights", classmethod(lambda _stage, _params: "asked for"))
            made = lower_fresh(*args, **options)
        assert set(_reasons(made)) == {"asked for"}
        return made

    return lowered


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights:UserWarning")  # torch's, of its own LSTM
@pytest.mark.parametrize(("model", "made"), [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)])
def test_as_with_weights(lower, lower_with_weights, model, made):
    """The file and every program on the way to it are the same with and without weights."""
    without = lower(f"builders:{model}", made, until="serialize")
    assert not any(_reasons(without))
    expected = lower_with_weights(f"builders:{model}", made, until="serialize")
    assert without.file == expected.file
    assert without.identities == expected.identities


@pytest.mark.parametrize("made", [PORTABLE, XNNPACK])
def test_other_weights(lower, lower_with_weights, stages, made):
    """After a change of weights only, `edge` and `partition` have the keys that they had; the file has the new weights.

    What was made of the first weights' graph, bound to the second weights, is what these alone give.
    """
    first, second = (lower("builders:tied", made, until="serialize", seed=seed) for seed in (0, 1))
    keys = {step: (done.key.digest(), second.steps[step].key.digest()) for step, done in first.steps.items()}
    same = {step for step, (before, after) in keys.items() if before == after}
    assert same == {step for step in keys if step.startswith(("edge", "partition"))}
    assert second.file == lower_with_weights("builders:tied", made, until="serialize", seed=1).file != first.file
    step = "partition/decode" if "partition/decode" in keys else "edge/decode"
    with open_store(str(stages.store.root)) as store:
        graph = graph_of(first.outputs[step]["program"], store)
        bound = bind(graph, second.outputs["export/decode"]["program"], store)
    assert bound.identity == second.outputs[step]["program"].identity != first.outputs[step]["program"].identity


class Other(torch.nn.Module):
    """A model that one thing about its weights tells from others."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        if change == "tied":
            self.second.weight = self.first.weight
        elif change == "frozen":
            self.first.weight.requires_grad_(False)
        elif change == "strides":
            self.first.weight = torch.nn.Parameter(torch.randn(4, 4).t())
        elif change == "buffer":
            del self.first.weight
            self.first.register_buffer("weight", torch.randn(4, 4))
        elif change == "part of a storage":
            self.first.weight = torch.nn.Parameter(torch.randn(8, 4)[:4])
        elif change == "dtype":
            self.to(torch.float64)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(values)))


def test_what_graphs_tell_apart(stages):
    """Graphs are equal for other values of weights, and differ for all else: ties, types, layouts, requires_grad."""

    def graph(change: str) -> Any:
        model = Other(change)
        program = torch.export.export(model, (torch.zeros(2, 4, dtype=model.first.bias.dtype),))
        with open_store(str(stages.store.root)) as store:
            return graph_of(save_program(program, kind="program/aten", store=stages.store), store)

    changes = ("", "tied", "frozen", "strides", "buffer", "part of a storage", "dtype")
    assert graph("") == graph("")
    assert len({graph(change).identity for change in changes}) == len(changes)


def test_memory_of_weights_that_constants_use(stages):
    """Where a constant is in the memory of a weight, it cannot be there without that weight: there is no graph."""

    def graph(shares: bool) -> Any:
        program = torch.export.export(Other(""), (torch.zeros(2, 4),))
        program.constants["part"] = (program.state_dict["first.weight"] if shares else torch.zeros(4, 4)).detach()[0]
        with open_store(str(stages.store.root)) as store:
            return graph_of(save_program(program, kind="program/aten", store=stages.store), store)

    assert graph(shares=False)
    shared = graph(shares=True)
    assert shared is None or shared.identity != graph(shares=False).identity


def _weight(program: Any) -> Any:
    return program.state_dict["conv.weight"]


@pytest.mark.parametrize(
    ("read", "telling"),
    [
        (lambda program: _weight(program).sum().item(), "_local_scalar_dense"),
        (lambda program: bool((_weight(program) > 0).all()), "_local_scalar_dense"),
        (lambda program: _weight(program).detach().numpy(), "numpy"),
        (lambda program: _weight(program).data.zero_(), "changes a weight"),
        (lambda program: _weight(program).untyped_storage().data_ptr(), "address"),
    ],
)
def test_what_reads_weights_takes_them(lower_fresh, monkeypatch, read, telling):
    """Code that reads a weight runs with the weights, even if it would catch the error; the params say why."""
    seen = []

    def refuses(_target: Any, program: Any) -> None:
        with suppress(Exception):
            read(program)
            seen.append(type(_weight(program)))

    monkeypatch.setattr(Xnnpack, "refuses", refuses)
    lowered = lower_fresh("builders:conv_net", XNNPACK, until="partition")
    assert seen == [torch.nn.Parameter]
    assert telling in lowered.steps["partition/forward"].call.params.takes_weights
    assert lowered.outputs["partition/forward"]["program"].kind == "program/partitioned"


def test_what_may_read_weights_takes_them(lower):
    """A recipe's own passes and targets that are not known to do without weights get them."""
    lowered = lower(
        "builders:conv_net", recipe("xnnpack", edge={"passes": [{"callable": "edge_passes:two"}]}), until="partition"
    )
    assert _reasons(lowered) == ["the recipe's passes may read weights", ""]
    coreml = TargetParams(name="coreml")
    assert "'coreml'" in Edge.takes_weights(Edge.Params(preserve_for=coreml))
    assert "'coreml'" in Edge.takes_weights(Edge.Params(passes_of=coreml))
    assert "'coreml'" in Partition.takes_weights(Partition.Params(target=coreml, edge=Edge.Params()))


def test_failures_come_from_the_program(lower_fresh, monkeypatch):
    """A stage that fails either way fails with the error that it has with the weights."""
    monkeypatch.setattr(Xnnpack, "refuses", lambda _target, _program: "too large")
    with pytest.raises(TargetError, match="too large"):
        lower_fresh("builders:conv_net", XNNPACK, until="partition")
