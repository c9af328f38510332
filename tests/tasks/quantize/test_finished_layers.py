"""Transforms that were killed: the next process takes their finished layers, and makes the same program."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pteforge
import pytest
import torch
from pteforge.artifacts.digest import Digest
from pteforge.artifacts.gc import collect
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.store import Store
from pteforge.configs.model import MethodDefinition, ModelDefinition
from pteforge.errors import StoreUnusable
from pteforge.tasks.programs import storages, weights
from pteforge.tasks.quantize import module_transforms
from pteforge.tasks.quantize.stages.source_transform import SourceTransform, transform_built
from pteforge.tasks.quantize.torchao_configs import TorchaoParams
from pteforge.tasks.usercode.model_source import BuiltModel
from safetensors.torch import save_file
from torch import nn

NAME = Digest("ab" * 32)
TAKEN = "layers quantized before it was interrupted"
BOTH = ("linear", "embedding")
GROUPS = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}
EIGHT_FOUR = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=GROUPS)
TABLES = TorchaoParams(
    config="IntxWeightOnlyConfig", fields={"weight_dtype": "int4", "granularity": {"per_group": 32}}, layers=BOTH[1:]
)
ROWS = {"weight_dtype": "int8", "granularity": {"per_axis": 0}}
ROUNDED = {**GROUPS, "intx_choose_qparams_algorithm": "hqq_scale_only"}
CODES = {"dtype": "uint2", "block_size": [-1, 32]}
TRANSFORMS: dict[str, Sequence[TorchaoParams]] = {
    "8da4w": [EIGHT_FOUR],
    "8da4w per channel": [
        EIGHT_FOUR.model_copy(update={"fields": {"weight_dtype": "int4", "weight_granularity": {"per_axis": 0}}})
    ],
    "8da4w asymmetric": [EIGHT_FOUR.model_copy(update={"fields": {**GROUPS, "weight_mapping_type": "asymmetric"}})],
    "8da4w hqq": [EIGHT_FOUR.model_copy(update={"fields": ROUNDED})],
    "two": [TABLES, EIGHT_FOUR],
    "two, which overlap": [
        EIGHT_FOUR.model_copy(update={"include": ("first", "back")}),
        TorchaoParams(config="IntxWeightOnlyConfig", fields=ROWS, layers=BOTH),
    ],
    "weight only, groups": [TorchaoParams(config="IntxWeightOnlyConfig", fields=TABLES.fields, layers=BOTH)],
    "weight only, rows": [TorchaoParams(config="IntxWeightOnlyConfig", fields=ROWS, layers=BOTH)],
    "int8 weight only": [TorchaoParams(config="Int8WeightOnlyConfig")],
    "8da8w": [TorchaoParams(config="Int8DynamicActivationInt8WeightConfig")],
    "codebooks": [TorchaoParams(config="CodebookWeightOnlyConfig", fields=CODES)],
}


class Net(nn.Module):
    """Layers of both kinds, large ones and small ones, one of them in two places; a table that may be the head, too."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(640, 64)
        self.first = nn.Linear(64, 320)
        self.back = nn.Linear(320, 64, bias=False)
        self.again = self.back
        self.small = nn.Linear(64, 64)
        self.head = nn.Linear(64, 640, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.again(self.first(self.back(self.first(self.table(tokens)))))
        return self.head(self.small(states))


@dataclass(frozen=True)
class Bench:
    """Transforms one model again and again."""

    folder: Path
    count: Callable[[], list[str]]

    def model(self, kind: str, *, tied: bool, factor: float = 1.0) -> BuiltModel:
        """In memory, or mapped from a checkpoint: as it is there, or cast on use."""
        torch.manual_seed(0)
        net = Net(tied=tied).eval()
        with torch.no_grad():
            net.small.weight.mul_(factor)
        if kind != "memory":
            file = self.folder / "model.safetensors"
            state = {name: value for name, value in net.state_dict().items() if not name.startswith("again")}
            state = {name: value for name, value in state.items() if not (tied and name == "head.weight")}
            if not file.exists():
                save_file({name: value.to(torch.bfloat16) for name, value in state.items()}, file)
            with torch.device("meta"):
                net = Net(tied=tied).eval()
            with weights.builder_scope(own=False):
                pteforge.load_weights(net, file, dtype=torch.float32 if kind == "cast" else None)
        return BuiltModel(ModelDefinition({"forward": MethodDefinition(net, [(torch.arange(6).reshape(1, 6),)])}))

    def store(self, name: str = "store") -> LocalStore:
        return LocalStore.open(self.folder / name)

    def run(self, model: BuiltModel, transforms: Sequence[TorchaoParams], *, keeping: bool = True, name: str = "store"):
        """The digest of the program, the calls of torchao, and what was said."""
        remarks: list[str] = []
        store, before = self.store(name), len(self.count())
        unfinished = store.unfinished(NAME) if keeping else None
        params = SourceTransform.Params(source={}, transforms=tuple(transforms))
        made = transform_built(model, params, store, unfinished, remarks.append)
        return made.program.identity, len(self.count()) - before, remarks

    def killed(self, model: BuiltModel, transforms: Sequence[TorchaoParams], after: int) -> None:
        """Does the same in a process that is killed when torchao is called once more."""
        if (child := os.fork()) == 0:
            quantize, calls = module_transforms.quantize_, iter(range(after + 1))

            def last_ones(*args: Any) -> Any:
                if next(calls) == after:
                    os.kill(os.getpid(), signal.SIGKILL)
                return quantize(*args)

            try:
                module_transforms.quantize_ = last_ones
                self.run(model, transforms)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def bench(tmp_path, monkeypatch):
    calls: list[str] = []
    quantize = module_transforms.quantize_
    monkeypatch.setattr(module_transforms, "quantize_", lambda *args: (calls.append(""), quantize(*args)))
    for module, name in ((weights, "_LEAST_CAST"), (weights, "_IN_MEMORY"), (storages, "_LEAST_REFERENCE")):
        monkeypatch.setattr(module, name, 1 << 12)  # as if the layers were large
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Bench(tmp_path, lambda: calls)
    torch.set_num_threads(threads)


def records(bench: Bench) -> list[Path]:
    return sorted(bench.store().unfinished(NAME).iterdir())


KINDS = ("memory", "mapped", "cast")
CASES = list(itertools.product(TRANSFORMS, (False, True), KINDS))
CASES = [case for case in CASES if case[0] != "codebooks" or case[2] != "mapped"]  # torchao makes them of float32
OFTEN = {("two", True, "cast")}, {(name, name.startswith("8"), "mapped") for name in TRANSFORMS if name != "codebooks"}


def marks(case: Any) -> Any:
    """One runs always, and one for each of the transforms before a release."""
    quick, slow = OFTEN
    return () if case in quick else pytest.mark.slow if case in slow else pytest.mark.nightly


@pytest.mark.parametrize(("name", "tied", "kind"), [pytest.param(*case, marks=marks(case)) for case in CASES])
def test_killed_transforms_continue(name, tied, kind, bench, monkeypatch):
    """Whatever the layers and transforms: the same program as without an interruption, and no layer is made twice."""
    monkeypatch.setattr(module_transforms, "_ROWS", 1 << 17)  # some of the layers are large
    model, transforms = bench.model(kind, tied=tied), TRANSFORMS[name]
    expected, calls, remarks = bench.run(model, transforms, keeping=False, name="other")
    assert not remarks
    bench.killed(model, transforms, after=calls - 1)
    again, left, remarks = bench.run(bench.model(kind, tied=tied), transforms)
    assert again == expected
    assert left < calls - 1
    assert remarks == [f"{len(records(bench)) - 1} {TAKEN}"]
    assert bench.run(model, transforms)[0] == expected  # all of them


@pytest.fixture
def interrupted(bench):
    """A model whose transform was killed when one call of torchao was left; its store has records of the others."""
    model = bench.model("memory", tied=False)
    bench.killed(model, TRANSFORMS["8da4w"], after=3)
    return model


def test_what_does_not_fit_is_made_again(bench, interrupted):
    """Another config, other weights, or another layer: no record is of that. Others' records do no harm."""
    assert len(records(bench)) == 3
    assert bench.run(interrupted, TRANSFORMS["8da4w per channel"])[1:] == (4, [])
    changed = bench.model("memory", tied=False, factor=2.0)
    assert bench.run(changed, TRANSFORMS["8da4w"])[1] == 2  # one that was changed, one that was missing
    expected = bench.run(changed, TRANSFORMS["8da4w"], keeping=False, name="other")[0]
    assert bench.run(changed, TRANSFORMS["8da4w"])[:2] == (expected, 0)


def test_a_checkpoint_that_was_written_is_read_again(bench):
    """A file is known by its times and its inode, as it is for the store's references to it."""
    bench.killed(bench.model("cast", tied=False), TRANSFORMS["8da4w"], after=3)
    (bench.folder / "model.safetensors").unlink()
    changed = bench.model("cast", tied=False, factor=2.0)
    expected = bench.run(changed, TRANSFORMS["8da4w"], keeping=False, name="other")[0]
    assert bench.run(changed, TRANSFORMS["8da4w"]) == (expected, 4, [])


def cut(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    path.chmod(0o600)
    content = path.read_bytes()
    path.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("what", ["record", "object"])
def test_what_is_damaged_is_made_again(what, damage, bench, interrupted):
    """A record, or an object that it names, that is not what was written counts as missing."""
    expected = bench.run(interrupted, TRANSFORMS["8da4w"], keeping=False, name="other")[0]
    objects = sorted(bench.store().root.glob("objects/*/*"), key=lambda path: path.stat().st_size)
    damage(records(bench)[0] if what == "record" else objects[-1])
    assert bench.run(interrupted, TRANSFORMS["8da4w"]) == (expected, 2, [f"2 {TAKEN}"])


def test_layers_survive_a_full_disk(bench, interrupted, monkeypatch):
    """The error is of the store, and what was finished stays finished."""
    expected = bench.run(interrupted, TRANSFORMS["8da4w"], keeping=False, name="other")[0]

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreUnusable, match=r"No space left .*free some space"):
            bench.run(interrupted, TRANSFORMS["8da4w"])
    assert bench.run(interrupted, TRANSFORMS["8da4w"]) == (expected, 1, [f"3 {TAKEN}"])


def test_what_cannot_be_restored_is_not_kept(bench, monkeypatch):
    """What draws random numbers, changes more of a layer than its parameters, or replaces it, is done each time."""
    quantize = module_transforms.quantize_

    def drawing(*args: Any) -> None:
        torch.rand(1)
        quantize(*args)

    def marking(holder: nn.Module, config: Any, chosen: Any) -> None:
        quantize(holder, config, chosen)
        for layer in holder.modules():
            layer.marked = object()

    def replacing(holder: nn.Module, config: Any, chosen: Any) -> None:
        holder.module.head = nn.Sequential(holder.module.head)
        quantize(holder, config, chosen)

    model = bench.model("memory", tied=False)
    head = [EIGHT_FOUR.model_copy(update={"include": ("head",)})]
    for function in (drawing, marking, replacing):
        monkeypatch.setattr(module_transforms, "quantize_", function)
        bench.run(model, head)
        assert not records(bench)


def test_layers_are_objects_of_the_store(bench, interrupted, tmp_path):
    """No byte is on the disk twice, and no scratch file is left; garbage collection counts and removes the layers."""
    store = Store(tmp_path / "store")
    made = {path.stat().st_ino for path in store.local.root.glob("objects/*/*")}
    assert collect(store, dry_run=True).objects_kept == len(made) > 0
    bench.run(interrupted, TRANSFORMS["8da4w"])
    assert made <= {path.stat().st_ino for path in store.local.root.glob("objects/*/*")}
    collect(store)  # within the grace period
    assert records(bench)
    assert not [*store.local.root.glob("tmp/*")]
    assert collect(store, keep_newer_than=timedelta(0)).leftovers_removed == 1
    assert not [*(store.local.root / "unfinished").iterdir()]
