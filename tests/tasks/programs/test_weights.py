"""Weights that stay in files: casts that are computed when an operator reads them, and what the store refers to."""

import itertools
import subprocess
import sys

import pytest
import torch
import transformers
from pteforge.artifacts.local_store import LocalStore
from pteforge.errors import StoreUnusable
from pteforge.tasks.export.eager import run_eager
from pteforge.tasks.export.method import digest_weights, export_sized
from pteforge.tasks.programs import weights
from pteforge.tasks.programs.program import load_program, save_program
from pteforge.tasks.programs.storages import INLINE_STORAGE_LIMIT, map_storage, put_storage
from pteforge.tasks.programs.weights import (
    TensorFiles,
    WeightsOnUse,
    cast_of,
    cast_on_use,
    map_reference,
    reference_of,
)
from pteforge.tasks.sources import huggingface
from pteforge.tasks.usercode.model_source import build
from safetensors.torch import load_file, save_file
from torch.nn.functional import embedding, linear

CASTS = [*itertools.permutations((torch.bfloat16, torch.float16, torch.float32), 2)]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(weights, "_LEAST_CAST", INLINE_STORAGE_LIMIT + 1)


@pytest.fixture(params=CASTS, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace("torch.", ""))
def cast(request, tmp_path):
    """A matrix [96, 64] that is cast when it is used, and the same one in memory."""
    source, dtype = request.param
    torch.manual_seed(0)
    save_file({"other": torch.randn(7), "weight": torch.randn(96, 64).to(source)}, tmp_path / "weights.safetensors")
    mapped = load_file(tmp_path / "weights.safetensors")["weight"]
    made = cast_on_use(mapped, dtype)
    assert cast_of(made) is mapped
    return made, mapped.to(dtype, copy=True)


READERS = {
    "linear": lambda w, x: linear(x, w),
    "matmul of a view": lambda w, x: x @ w.t(),
    "matmul of a slice": lambda w, x: x[:, :48] @ w[16:40, 16:].t().reshape(48, -1)[:, :8],
    "embedding": lambda w, _: embedding(torch.tensor([[3, 95, 0]]), w),
    "embedding of a part": lambda w, _: embedding(torch.tensor([3, 0]), w[5:20]),
    "index": lambda w, _: w[torch.tensor([4, 7])],
    "index_select": lambda w, _: w.index_select(1, torch.tensor([4, 7])),
    "rows": lambda w, _: w[3:5] * 2,
    "columns": lambda w, _: w[:, 3] + w[:, 4],
    "one number": lambda w, _: torch.tensor(w[7, 7].item()),
    "sum": lambda w, _: w.float().sum(0),
    "twice": lambda w, _: w @ w.t(),
    "clone": lambda w, _: w.clone(),
    "copy in another dtype": lambda w, _: w.to(torch.float64),
    "cat": lambda w, _: torch.cat([w, w[:2]]),
    "chunks": lambda w, _: w.chunk(3)[1] - w.split(32)[2],
    "flat": lambda w, _: w.view(-1)[100:200].abs(),
    "strided": lambda w, _: torch.as_strided(w, (4, 4), (64, 2), 33) * 1,
    "einsum": lambda w, x: torch.einsum("ij,kj->ik", x, w),
    "fold over a list": lambda w, _: torch.stack([w[0], w[1]]).max(),
}


@pytest.mark.parametrize("reader", READERS)
def test_operators_read_what_a_copy_has(cast, reader):
    made, expected = cast
    given = torch.linspace(-1, 1, 5 * 64).reshape(5, 64).to(made.dtype)
    with WeightsOnUse(), torch.no_grad():
        found = READERS[reader](made, given)
    assert torch.equal(found, READERS[reader](expected, given))
    assert not made.any()  # its memory is free again: outside, it reads zeros


WRITERS = {
    "add_": lambda w: w.add_(1),
    "part": lambda w: w[2:4].mul_(3),
    "copy_": lambda w: w.copy_(torch.ones_like(w)),
    "data": lambda w: w.data.zero_(),
    "fill": lambda w: w.masked_fill_(w > 0, 0.5),
    "out": lambda w: torch.add(w, 1, out=w),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_who_writes_makes_it_a_tensor_in_memory(cast, writer):
    made, expected = cast
    with WeightsOnUse(), torch.no_grad():
        WRITERS[writer](made)
    WRITERS[writer](expected)
    assert torch.equal(made, expected)
    assert cast_of(made) is None


class Branches(torch.nn.Module):
    """Chooses between two uses of a weight, and repeats one for each row."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        chosen = torch.cond(x.sum() > 0, lambda v: v @ self.weight, lambda v: (v - 1) @ self.weight[:64], (x,))
        return torch.cond(chosen.sum() > 1e9, lambda v: v.sin(), lambda v: v + self.weight[0], (chosen,))


@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_reads_what_a_copy_has(tmp_path, sign):
    """Weights that branches use are given to the operator of higher order."""
    torch.manual_seed(0)
    save_file({"weight": torch.randn(64, 64).bfloat16()}, tmp_path / "file")
    mapped = load_file(tmp_path / "file")["weight"]
    given = torch.rand(3, 64) * sign
    programs = [
        torch.export.export(Branches(weight), (given,)).module()
        for weight in (cast_on_use(mapped, torch.float32), mapped.float())
    ]
    with WeightsOnUse(), torch.no_grad():
        found = programs[0](given)
    assert torch.equal(found, programs[1](given))


def test_the_file_is_never_written(tmp_path):
    save_file({"weight": torch.ones(64, 64, dtype=torch.bfloat16)}, tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    made = cast_on_use(load_file(tmp_path / "file")["weight"], torch.float32)
    with WeightsOnUse():
        made.add_(1)
    assert (tmp_path / "file").read_bytes() == before


def test_without_address_space_casts_are_made_at_once(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(weights, "_Cast", refuse)
    save_file({"weight": torch.randn(64, 64).bfloat16()}, tmp_path / "file")
    mapped = load_file(tmp_path / "file")["weight"]
    assert torch.equal(cast_on_use(mapped, torch.float32), mapped.float())


def test_a_full_disk_is_an_error_and_no_signal(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(StoreUnusable, match=r"No space left .*free some space"):
        weights.TensorFiles(tmp_path).moved(torch.ones(300, 300))


def test_what_is_in_memory_is_cast_at_once():
    for tensor in (torch.ones(64, 64), torch.ones(64), torch.ones(2, 3, 4, 5)):
        assert torch.equal(cast_on_use(tensor, torch.float16), tensor.half())


def test_store_refers_to_bytes_that_a_file_has(cast, tmp_path):
    made, expected = cast
    store = LocalStore.open(tmp_path / "store")
    blob = put_storage_of_any_size(made.untyped_storage(), store)
    referred = reference_of(made.untyped_storage())
    widened = cast_of(made).dtype is torch.bfloat16 and made.dtype is torch.float32
    assert (referred is not None) == widened == (store.reference(blob) is not None)
    assert store.read(blob) == bytes(expected.view(torch.uint8).numpy())


def put_storage_of_any_size(storage, store):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pteforge.tasks.programs.storages._LEAST_REFERENCE", 1)
        return put_storage(storage, store)


def test_mapped_weights_that_were_changed_are_no_file(tmp_path):
    """A private mapping has pages of its own then."""
    save_file({"weight": torch.ones(64, 64)}, tmp_path / "file")
    mapped = load_file(tmp_path / "file")["weight"]
    store = LocalStore.open(tmp_path / "store")
    assert store.reference(put_storage_of_any_size(mapped.untyped_storage(), store))
    mapped[3, 3] = 2
    assert reference_of(mapped.untyped_storage()) is None
    blob = put_storage_of_any_size(mapped.untyped_storage(), store)
    assert not store.reference(blob)
    assert store.read(blob) == bytes(mapped.view(torch.uint8).numpy())


def test_a_file_that_was_replaced_is_not_referred_to(tmp_path):
    save_file({"weight": torch.ones(64, 64)}, tmp_path / "file")
    mapped = load_file(tmp_path / "file")["weight"]
    (tmp_path / "file").unlink()
    assert reference_of(mapped.untyped_storage()) is None
    save_file({"weight": torch.zeros(64, 64)}, tmp_path / "file")
    assert reference_of(mapped.untyped_storage()) is None


def test_references_are_mapped_again(cast):
    made, expected = cast
    if referred := reference_of(made.untyped_storage()):
        again = torch.empty(0, dtype=made.dtype).set_(map_reference(referred), 0, made.shape)
        with WeightsOnUse():
            assert torch.equal(again.clone(), expected)
    plain = reference_of(cast_of(made).untyped_storage())
    again = torch.empty(0, dtype=cast_of(made).dtype).set_(map_reference(plain), 0, made.shape)
    assert torch.equal(again, cast_of(made))


LAYERS = """
import re, sys
from pathlib import Path
import torch
from torch import nn
from safetensors.torch import load_file
from pteforge.tasks.export.eager import run_eager
from pteforge.tasks.programs.weights import cast_on_use

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

most = []

class Watched(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x)
            most.append(anonymous())
        return x

state = load_file(sys.argv[1])
layers = Watched(*(nn.Linear(2048, 2048, bias=False, device="meta") for _ in state))
cast = (lambda weight, dtype: weight.to(dtype)) if sys.argv[2] == "at once" else cast_on_use
layers.load_state_dict({f"{name}.weight": cast(state[name], torch.float32) for name in state}, assign=True)
before = anonymous()
(found,) = run_eager(layers, ((torch.ones(1, 2048),), {}), "ones")
print(before, max(most) - before, found.double().sum().item())
"""


def test_memory_is_that_of_one_weight(tmp_path):
    """Twelve layers of 16 MiB in float32 take 192 MiB at once."""
    save_file({str(n): torch.randn(2048, 2048).bfloat16() for n in range(12)}, tmp_path / "file")
    (held, _, expected), (mapped, used, found) = (
        map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        for command in ([sys.executable, "-c", LAYERS, tmp_path / "file", how] for how in ("at once", "on use"))
    )
    assert found == expected
    assert held - mapped > 180
    assert used < 50


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 120,
}
NETS = {
    "llama": {**SMALL, "num_key_value_heads": 1},
    "qwen3": {**SMALL, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {**SMALL, "num_key_value_heads": 1, "head_dim": 16},
    "mixtral": {**SMALL, "num_key_value_heads": 1, "num_local_experts": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 120},
    "phi": {**SMALL},
    "opt": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bert": {**SMALL},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "vocab_size": 120},
    "vit": {**SMALL, "image_size": 32, "patch_size": 8},
    "t5": {"d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 120},
    "bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    | {"decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 120},
    "wav2vec2": {
        **SMALL,
        "conv_dim": [8, 8],
        "conv_stride": [5, 4],
        "conv_kernel": [8, 4],
        "num_feat_extract_layers": 2,
    }
    | {"num_conv_pos_embedding_groups": 2},
}
TALKING = {"llama", "qwen3", "gemma2", "mixtral", "gpt2", "phi", "opt"}


def save_checkpoint(kind, folder):
    """Random weights in bfloat16."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **NETS[kind])
    auto = transformers.AutoModelForCausalLM if kind in TALKING else transformers.AutoModel
    auto.from_config(config).bfloat16().save_pretrained(folder)


OFTEN = ("llama", "mixtral", "gpt2", "bert", "t5")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in OFTEN else pytest.mark.nightly) for kind in NETS]
)
def test_models_by_name_are_what_they_are_in_memory(kind, tmp_path, monkeypatch):
    """Outputs, digests of weights, and exported programs, in the store and read again."""
    monkeypatch.setattr("pteforge.tasks.programs.storages._LEAST_REFERENCE", 1)
    save_checkpoint(kind, tmp_path / "net")
    source = "text_generation:model" if kind in TALKING else "huggingface:Model"
    arguments = {"name": str(tmp_path / "net"), "sequence": 16}

    def built():
        torch.manual_seed(0)
        return build(f"pteforge.tasks.sources.{source}", arguments).definition

    on_use = built()
    monkeypatch.setattr(huggingface, "cast_on_use", lambda tensor, dtype: tensor.to(dtype))
    in_memory = built()
    name = next(iter(in_memory.methods))
    method = on_use.methods[name]
    assert any(cast_of(weight) is not None for weight in method.module.parameters())
    assert not any(cast_of(weight) is not None for weight in in_memory.methods[name].module.parameters())
    assert digest_weights(on_use) == digest_weights(in_memory)
    for example in method.example_inputs:
        found, expected = (run_eager(made.methods[name].module, (example, {}), "") for made in (on_use, in_memory))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    store = LocalStore.open(tmp_path / "store")
    programs = [export_sized(name, made.methods[name], None, strict=False)[0] for made in (on_use, in_memory)]
    kept, copied = (save_program(program, kind="program/aten", store=store) for program in programs)
    assert kept.identity == copied.identity
    on_disk = sum(stored.size for stored in store)
    read = load_program(kept, store, on_use=True)
    assert sum(stored.size for stored in store) == on_disk
    with WeightsOnUse(), torch.no_grad():
        found, expected = (
            torch.utils._pytree.tree_leaves(program.module(check_guards=False)(*method.example_inputs[0]))
            for program in (read, programs[1])
        )
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_store_behind_a_link(tmp_path):
    """Tensors in scratch files become objects, also where the system names the folder of the store otherwise."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = LocalStore.open(tmp_path / "link" / "store")
    values = torch.arange(1 << 19)
    with store.scratch() as folder:
        moved = TensorFiles(folder).moved(values)
        blob = put_storage(moved.untyped_storage(), store)
        assert not [*folder.iterdir()]
    assert store.reference(blob) is None
    assert store.read(blob) == values.numpy().tobytes()


def test_an_object_is_not_stored_again(tmp_path, monkeypatch):
    """A tensor that is mapped from an object is that object, unless it was changed."""
    store = LocalStore.open(tmp_path / "store")
    values = torch.arange(1 << 19)
    blob = put_storage(values.untyped_storage(), store)
    mapped = torch.empty(0, dtype=values.dtype).set_(map_storage(store.path(blob), blob.size), 0, values.shape)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_bytes", None)
        assert put_storage(mapped.untyped_storage(), store) == blob
    mapped[5] = 0
    changed = put_storage(mapped.untyped_storage(), store)
    assert changed != blob
    assert store.read(changed) == mapped.numpy().tobytes()
