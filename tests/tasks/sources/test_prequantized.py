"""Quantized checkpoints: their numbers in floating point, by format, and how many of them a quantized file keeps."""

import json
from contextlib import nullcontext

import pytest
import torch
from pteforge.errors import SourceError, TargetError
from pteforge.tasks.quantize.module_transforms import transform_copy
from pteforge.tasks.quantize.rounding import kept_layers
from pteforge.tasks.quantize.torchao_configs import TorchaoParams
from pteforge.tasks.sources.huggingface import load_model, repo_of
from safetensors.torch import save_file
from torchao.quantization import IntxWeightOnlyConfig, PerGroup
from transformers import LlamaConfig, LlamaForCausalLM, TorchAoConfig

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUP = 32
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each half byte of a word, lowest first


def words(numbers, bits=4, order=None):
    """[rows, columns] of unsigned numbers in 32 bits each, from the lowest ones."""
    count = 32 // bits
    parts = numbers.long().unflatten(1, (-1, count))[:, :, list(order or range(count))]
    packed = sum(part << bits * place for place, part in enumerate(parts.unbind(2)))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def gptq(integers, zeros, scales, bits, index=None):
    offset = 1 << bits - 1
    index = torch.arange(integers.shape[1]) // GROUP if index is None else index
    return {
        "qweight": words(integers + offset, bits).T,
        "qzeros": words((zeros + offset - 1).T, bits),
        "scales": scales.T,
        "g_idx": index.to(torch.int32),
    }


def awq(integers, zeros, scales, bits):
    return {
        "qweight": words((integers + 8).T, bits, AWQ),
        "qzeros": words((zeros + 8).T, bits, AWQ),
        "scales": scales.T,
    }


def compressed(integers, zeros, scales, bits):
    offset = 1 << bits - 1
    parts = {"weight_packed": words(integers + offset, bits), "weight_scale": scales}
    parts["weight_shape"] = torch.tensor(integers.shape)
    return {**parts, "weight_zero_point": words((zeros + offset).T, bits).T}


def whole(integers, zeros, scales, bits):
    del bits
    return {"weight": integers.to(torch.int8), "weight_scale": scales, "weight_zero_point": zeros.to(torch.int8)}


def blocks(integers, zeros, scales, bits):
    """Float8 holds these integers exactly."""
    del zeros, bits
    scale = scales[:1, :1].repeat(-(-integers.shape[0] // GROUP), integers.shape[1] // GROUP)
    return {"weight": integers.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": GROUP}}},
}
FORMATS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq of 8 bits": (gptq, {"quant_method": "gptq", "bits": 8, "group_size": GROUP}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "compressed-tensors": (compressed, COMPRESSED),
    "compressed-tensors, not packed": (whole, {**COMPRESSED, "format": "int-quantized"}),
    "fp8": (blocks, {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}),
}


def checkpoint(folder, form, *, symmetric=True, index=None):
    """Writes a quantized model into a folder; returns the same in floating point, and the integers of its layers."""
    pack, config = FORMATS[form]
    bits = config.get("bits", 4)
    torch.manual_seed(0)
    net = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=100, tie_word_embeddings=False))
    tensors, known = {}, {}
    for name, module in net.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        rows, columns = module.weight.shape
        integers = torch.randint(-(1 << bits - 1), 1 << bits - 1, (rows, columns))
        scales = (0.01 + 0.01 * torch.rand(rows, columns // GROUP)).half()
        zeros = torch.zeros(scales.shape, dtype=int) if symmetric else torch.randint(-4, 4, scales.shape)
        if pack is blocks:
            scales = scales[:1, :1].float().expand_as(scales)
        more = {} if index is None else {"index": index(columns)}
        places = more.get("index", torch.arange(columns) // GROUP)
        module.weight.data = (integers - zeros[:, places]) * scales.float()[:, places]
        tensors |= {f"{name}.{last}": value for last, value in pack(integers, zeros, scales, bits, **more).items()}
        known[name] = integers
    kept = {name: value for name, value in net.state_dict().items() if name.removesuffix(".weight") not in known}
    tensors = {name: value.contiguous() for name, value in (tensors | kept).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    net.config.quantization_config = config
    (folder / "config.json").write_text(json.dumps({**net.config.to_dict(), "quantization_config": config}))
    return net.eval(), known


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("form", FORMATS)
def test_formats(form, symmetric, tmp_path):
    """Weights are what the format says, to the bit."""
    net, known = checkpoint(tmp_path, form, symmetric=symmetric or form == "fp8")
    model, _ = load_model(repo_of(str(tmp_path), None), "text-generation", None)
    assert len(known) == 14
    for name, value in net.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_torchao(bits, tmp_path):
    """Weights that transformers reads are torchao's numbers, which a file of as many bits keeps."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=64)).save_pretrained(tmp_path / "float")
    config = IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), PerGroup(GROUP))
    quantized = LlamaForCausalLM.from_pretrained(
        tmp_path / "float", quantization_config=TorchAoConfig(config), dtype=torch.float32
    )
    quantized.save_pretrained(tmp_path / "quantized")
    model, _ = load_model(repo_of(str(tmp_path / "quantized"), None), "text-generation", None)
    for name, layer in quantized.model.layers.named_modules():
        if name.endswith("_proj"):
            weight = model.model.layers.get_submodule(name).weight
            torch.testing.assert_close(weight, layer.weight.dequantize(), rtol=0, atol=0, check_dtype=False)
    fields = {"weight_dtype": "int4", "weight_granularity": {"per_group": GROUP}}
    transform = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=fields, include=("model.*_proj",))
    transformed, _ = transform_copy(model, [transform])
    exact, rounded = kept_layers(model, transformed)
    assert (len(exact), len(rounded)) == ((14, 0) if bits == 4 else (0, 14))


def test_order_of_activations(tmp_path):
    """GPTQ may have groups of columns that are not next to each other."""
    shuffled = lambda columns: torch.randperm(columns) // GROUP  # noqa: E731
    net, _ = checkpoint(tmp_path, "gptq", index=shuffled)
    model, _ = load_model(repo_of(str(tmp_path), None), "text-generation", None)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"bits": 3}, "weights of 2, 4 and 8 bits are read, and not of 3"), ({"quant_method": "aqlm"}, "aqlm")],
)
def test_unknown_formats(change, problem, tmp_path):
    """What cannot be read is refused."""
    checkpoint(tmp_path, "gptq")
    config = json.loads((tmp_path / "config.json").read_bytes())
    config["quantization_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((SourceError, ImportError), match=problem):
        load_model(repo_of(str(tmp_path), None), "text-generation", None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("form", "options", "group", "kept"),
    [
        ("gptq", {}, GROUP, 14),
        ("gptq", {"symmetric": False}, GROUP, 0),
        ("gptq", {"index": lambda columns: torch.arange(columns) % (columns // GROUP)}, GROUP, 0),
        ("gptq", {}, 2 * GROUP, 0),
        ("gptq of 8 bits", {}, GROUP, 0),
        ("awq", {}, GROUP, 14),
        ("compressed-tensors", {}, GROUP // 2, 14),
    ],
    ids=["gptq", "zero points", "order of activations", "larger groups", "8 bits", "awq", "smaller groups"],
)
def test_kept_numbers(form, options, group, kept, dtype, tmp_path):
    """Layers with the same bits, and groups that lie in the checkpoint's, keep the numbers; others are rounded."""
    checkpoint(tmp_path, form, **options)
    model, _ = load_model(repo_of(str(tmp_path), None), "text-generation", None, dtype=dtype)
    fields = {"weight_dtype": "int4", "weight_granularity": {"per_group": group}}
    transform = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=fields, include=("model.*_proj",))
    with pytest.raises(TargetError, match="groups of 64") if group == 2 * GROUP else nullcontext():
        transformed, _ = transform_copy(model.float(), [transform])
        exact, rounded = kept_layers(model, transformed)
        assert (len(exact), len(rounded)) == (kept, 14 - kept)
