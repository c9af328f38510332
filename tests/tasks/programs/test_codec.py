"""Programs in the store: what is shared, what is copied when, and what is refused."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.errors import ObjectDamaged, StoreError
from pteforge.tasks.programs.pickler import INLINE_LIMIT
from pteforge.tasks.programs.program import load_program, save_program
from pteforge.tasks.programs.storages import INLINE_STORAGE_LIMIT, storage_bytes
from torch import Tensor, nn
from torch.export import ExportedProgram, export

OLD_VERSIONS = {"codec": 0, "torch": "2.12.0", "executorch": "1.5.0", "python": "3.10"}


def linear(features: int = 32, **options: Any) -> ExportedProgram:
    """A program with one weight, large enough to be a blob."""
    return export(nn.Linear(features, features, bias=False, **options), (torch.zeros(1, features),))


def with_tensors(**tensors: Tensor) -> ExportedProgram:
    """A program with these tensors in its state."""
    program = linear(4)
    program.state_dict.update(tensors)
    return program


def reload(program: ExportedProgram, store: LocalStore) -> ExportedProgram:
    return load_program(save_program(program, kind="program/test", store=store), store)


def test_ref(store):
    """The ref names the kind; its identity is that of every equal program of this kind, and of no other kind."""
    torch.manual_seed(0)
    ref = save_program(linear(), kind="program/aten", store=store)
    assert (ref.kind, ref.composite) == ("program/aten", True)
    assert ref.identity != ref.root.digest
    torch.manual_seed(0)
    assert save_program(linear(), kind="program/aten", store=store).identity == ref.identity
    torch.manual_seed(0)
    assert save_program(linear(), kind="program/edge", store=store).identity != ref.identity
    assert save_program(linear(), kind="program/aten", store=store).identity != ref.identity


def test_weights_are_blobs(store):
    """A weight is an object of exactly its bytes, one for all stages and for all tensors with these bytes."""
    program = linear()
    weight = program.state_dict["weight"]
    program.state_dict["copy"] = weight.detach().clone()
    aten = store.manifest(save_program(program, kind="program/aten", store=store))
    edge = store.manifest(save_program(to_edge(program).exported_program(), kind="program/edge", store=store))
    content = weight.detach().numpy().tobytes()
    assert digest_bytes(content) in {blob.digest for blob in aten.blobs}
    assert digest_bytes(content) in {blob.digest for blob in edge.blobs}
    assert len(aten.blobs) == 3  # the stream, the weight, and the manifest of the graph


def test_large_bytes_are_blobs(store):
    """Large bytes leave the stream, and so does state: small weights as one blob. Small bytes stay in the stream."""
    program = with_tensors(
        small=torch.zeros(INLINE_STORAGE_LIMIT // 4), large=torch.zeros(INLINE_STORAGE_LIMIT // 4 + 1)
    )
    large, small = os.urandom(INLINE_LIMIT + 1), os.urandom(INLINE_LIMIT)
    program.graph_module.meta.update(large=large, small=small)
    manifest = store.manifest(save_program(program, kind="program/test", store=store))
    digests = {blob.digest for blob in manifest.blobs}
    assert digest_bytes(large) in digests
    assert digest_bytes(small) not in digests
    assert digest_bytes(storage_bytes(program.state_dict["large"].untyped_storage())) in digests
    small_weights = [program.state_dict[name].untyped_storage() for name in ("small", "weight")]
    assert digest_bytes(b"".join(map(storage_bytes, small_weights))) in digests
    assert len(digests) == 5  # and the stream, and the manifest of the graph
    loaded = reload(program, store)
    assert loaded.graph_module.meta == program.graph_module.meta
    assert all(torch.equal(loaded.state_dict[name], program.state_dict[name]) for name in ("small", "large"))


def test_mapped(store):
    """Weights are mapped from the store's file; writing to one changes neither the file nor another load."""
    program = linear()
    ref = save_program(program, kind="program/test", store=store)
    before = program.state_dict["weight"].detach().clone()
    first, second = load_program(ref, store), load_program(ref, store)
    weight = first.state_dict["weight"]
    blob = next(blob for blob in store.manifest(ref).blobs if blob.size == before.nbytes)
    assert str(store.path(blob)) in Path("/proc/self/maps").read_text()
    weight.data.add_(1)
    assert torch.equal(weight, before + 1)
    assert torch.equal(second.state_dict["weight"], before)
    assert store.path(blob).read_bytes() == before.numpy().tobytes()
    assert save_program(first, kind="program/test", store=store).identity != ref.identity
    assert save_program(second, kind="program/test", store=store).identity == ref.identity
    store.path(blob).chmod(0o600)
    store.path(blob).write_bytes(bytes(blob.size))
    with pytest.raises(ObjectDamaged):
        load_program(ref, store)


def test_aliases(store):
    """Tensors that share a storage still do, at their offsets; equal ones in storages of their own still do not."""
    whole = torch.arange(2048.0)
    program = with_tensors(whole=whole, part=whole[1024:].view(32, 32).t(), other=whole.clone())
    state = reload(program, store).state_dict
    assert state["part"].untyped_storage().data_ptr() == state["whole"].untyped_storage().data_ptr()
    assert (state["part"].shape, state["part"].stride(), state["part"].storage_offset()) == ((32, 32), (1, 32), 1024)
    state["whole"][1024] = -1
    assert state["part"][0, 0] == -1
    assert state["other"][1024] == 1024


def test_tensors(store):
    """Tensors of all types and layouts come back with their type, shape, strides and bits."""
    tensors = {
        **{str(dtype): torch.randn(300).to(dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.cfloat)},
        "empty": torch.zeros(2, 0, 3),
        "scalar": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1).expand(3, 4),
        "meta": torch.empty(2, 3, device="meta"),
    }
    loaded = reload(with_tensors(**tensors), store).state_dict
    for name, tensor in tensors.items():
        after, before = (
            (one.dtype, one.shape, one.stride(), one.device, one.is_meta or bytes(storage_bytes(one.untyped_storage())))
            for one in (loaded[name], tensor)
        )
        assert after == before, name


def test_parameters(store):
    """Parameters and buffers stay what they are, with requires_grad; of other attributes the plain ones stay."""
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    buffer = nn.Buffer(torch.zeros(2), persistent=False)
    buffer.owner = nn.Linear(1, 1)
    state = reload(
        with_tensors(frozen=frozen, buffer=buffer, leaf=torch.zeros(2, requires_grad=True)), store
    ).state_dict
    assert isinstance(state["weight"], nn.Parameter)
    assert state["weight"].requires_grad
    assert isinstance(state["frozen"], nn.Parameter)
    assert not state["frozen"].requires_grad
    assert isinstance(state["buffer"], nn.Buffer)
    assert state["buffer"].persistent is False
    assert not hasattr(state["buffer"], "owner")
    assert state["leaf"].requires_grad
    assert not isinstance(state["leaf"], nn.Parameter)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        *(({name: old}, "was written by .*has to run again") for name, old in OLD_VERSIONS.items()),
        ({"stream": -1}, "cannot be loaded"),
        ({"stream": 7}, "cannot be loaded: IndexError"),
        ({"externals": [["weight", 0]]}, "cannot be loaded: TypeError"),
        ({"weights": [[0]]}, "cannot be loaded: ValueError"),
        (None, "was written by None"),
    ],
)
def test_what_cannot_be_loaded(changes, problem, store):
    """Streams of other versions, bytes that are no stream and manifests of something else are refused."""
    manifest = store.manifest(save_program(linear(), kind="program/test", store=store))
    blobs = (*manifest.blobs, store.put_bytes(b"no zlib"))
    body = [] if changes is None else {**manifest.body, **changes}
    with pytest.raises(StoreError, match=problem):
        load_program(store.put_manifest(ArtifactManifest("program/test", blobs, body)), store)


def test_module_gone(store, tmp_path, monkeypatch):
    """A program that names a user's class can be loaded only where that can be imported; the error names it."""
    (tmp_path / "their_module.py").write_text("class Theirs:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import their_module

    program = linear()
    program.graph_module.meta["theirs"] = their_module.Theirs()
    ref = save_program(program, kind="program/test", store=store)
    assert type(load_program(ref, store).graph_module.meta["theirs"]) is their_module.Theirs
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "their_module")
    with pytest.raises(StoreError, match="their_module"):
        load_program(ref, store)
