"""How many architectures come out verified, ours beside ExecuTorch's own calls: small random weights, one file each.

    python benchmarks/breadth.py [--only GLOB] [--recipes xnnpack-fp32,portable-fp32,xnnpack-int8-dynamic] [--write]

Models are those of transformers that a configuration alone makes, at small sizes, and, where timm is installed, some of
timm. "Direct" exports the same module with the same example inputs, calls `to_edge_transform_and_lower` and
`to_executorch`, runs the file, and compares with eager: 80 dB, as the recipes of pteforge ask for.
`--write` puts the table into docs/models-by-name.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "models-by-name.md"
BEGIN, END = "<!-- benchmarks/breadth.py --write: begin -->\n", "<!-- benchmarks/breadth.py --write: end -->\n"

# By `model_type`. Not chosen by result: those that build at small sizes, one of each family.
TRANSFORMERS = {
    "text": """albert apertus arcee bert bert-generation big_bird biogpt bitnet bloom camembert cohere cohere2 convbert
        ctrl deberta deberta-v2 diffllama distilbert electra ernie4_5 esmc eurobert exaone4 falcon falcon_mamba flaubert
        fnet gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neox granite granitemoe gte helium ibert internlm3
        jamba jetmoe lfm2 llama longformer mamba megatron-bert minicpm3 ministral3 mistral mixtral mobilebert modernbert
        mpnet mpt nemotron_h nomic_bert nystromformer olmo2 olmo3 openai-gpt opt persimmon phi phi3 qwen2 qwen3
        recurrent_gemma roberta roformer""",
    "text to text": "bart blenderbot fsmt led longt5 m2m_100 marian mbart mt5 pegasus plbart prophetnet t5 umt5",
    "vision": """beit clip_vision_model convnext convnextv2 cvt data2vec-vision deit dinov2 dinov3_vit focalnet glpn
        hgnet_v2 hiera ijepa internvl_vision levit mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2
        regnet resnet segformer siglip_vision_model swiftformer textnet vit vit_msn yolos""",
    "audio": "data2vec-audio hubert moonshine sew sew-d speech_to_text unispeech wav2vec2 wavlm whisper",
    "text and images": "altclip blip chinese_clip clip clipseg flava git groupvit owlvit siglip vilt",
}
TIMM = """convnext_atto cspresnet50 deit3_small_patch16_224 densenet121 edgenext_xx_small efficientnet_b0 fastvit_t8
    ghostnet_100 inception_next_tiny lcnet_050 levit_128s mixer_s32_224 mobilenetv3_small_050 mobilenetv4_conv_small
    mobileone_s0 regnetx_002 repvit_m0_9 rexnet_100 tinynet_e vit_tiny_patch16_224"""

SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "embed_dim", "n_embd", "hidden_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "projection_dim", "emb_dim", "moe_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("d_inner", "intermediate_dim", "mlp_dim", "image_size"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), 16),
    "vocab_size": 128,
}

# Lowers a model as ExecuTorch's documentation does; the last line is a JSON list of the status and the problem.
DIRECT = """
import json, sys
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

def run(source, backend):
    torch.manual_seed(0)
    if "timm" in source:
        from pteforge.tasks.sources.timm_models import Model
        made = Model(source["timm"], {}, pretrained=False)
    else:
        from pteforge.tasks.sources.huggingface import Model
        made = Model(source["huggingface"], config=source["config"])
    module, inputs = made.get_eager_model(), made.get_example_inputs()
    partitioner = [XnnpackPartitioner()] if backend == "xnnpack" else []
    with torch.no_grad():
        wanted = module(*inputs)
        program = torch.export.export(module, inputs)
    file = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch().buffer
    found = Runtime.get().load_program(bytes(file)).load_method("forward").execute(list(inputs))
    for output, value in zip(found, torch.utils._pytree.tree_leaves(wanted), strict=True):
        noise = (output.double() - value.double()).pow(2).sum()
        if noise and not 10 * torch.log10(value.double().pow(2).sum() / noise) >= 80:
            raise ValueError("differs from eager by less than 80 dB")

try:
    run(*json.loads(sys.argv[1]))
    said = ["verified", ""]
except Exception as error:
    first = str(error).strip().partition("\\n")[0]
    said = ["failed", f"{type(error).__name__}: {first}"]
print("\\n" + json.dumps(said))
"""

LIMIT = 300  # seconds of one direct call


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that replace those of a configuration and its parts; ids of special tokens beyond the vocabulary are 1."""
    made: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and (name.endswith("_config") or "model_type" in value):
            made[name] = shrunk(value)
        elif type(value) is int and name in SIZES:
            made[name] = min(value, SIZES[name])
        elif type(value) is int and name.endswith(("_token_id", "_token_index")) and value >= SIZES["vocab_size"]:
            made[name] = 1
    return made


def sources(only: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, name and source of each model whose name matches."""
    from pteforge.tasks.upstream.torchvision_operators import import_torchvision
    from transformers import CONFIG_MAPPING

    import_torchvision()
    for kind, names in TRANSFORMERS.items():
        for name in filter(lambda name: fnmatchcase(name, only), names.split()):
            config = shrunk(CONFIG_MAPPING[name]().to_dict())
            yield kind, name, {"huggingface": name, "config": config}
    if find_spec("timm"):
        for name in filter(lambda name: fnmatchcase(name, only), TIMM.split()):
            yield "timm", name, {"timm": name, "pretrained": False}


def ours(models: Mapping[str, Any], recipes: Iterable[str], folder: Path) -> dict[str, dict[str, str]]:
    """Recipe to model to the problem, empty for a verified file."""
    zoo = {"version": 1, "models": {name: {"source": source, "recipes": [*recipes]} for name, source in models.items()}}
    (folder / "zoo.yaml").write_text(json.dumps(zoo), encoding="utf-8")
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--json", "--store", folder / "store"]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, check=False)
    found: dict[str, dict[str, str]] = {recipe: {} for recipe in recipes}
    for model, of_recipes in json.loads(done.stdout)["models"].items():
        for recipe, outcome in of_recipes.items():
            found[recipe][model] = "" if outcome.get("file") else f"{outcome['step']}: {outcome['problem']}"
    return found


def direct(models: Mapping[str, Any], backend: str) -> dict[str, str]:
    """Model to the problem, empty for a verified file; two at a time, each in a process of its own."""

    def call(source: Any) -> str:
        command = [sys.executable, "-c", DIRECT, json.dumps([source, backend])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
        except subprocess.TimeoutExpired:
            return f"took more than {LIMIT} s"
        if done.returncode:
            return f"process ended with {done.returncode}"
        problem: str = json.loads(done.stdout.splitlines()[-1])[1]
        return problem

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(models, pool.map(call, models.values()), strict=True))


def table(kinds: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]) -> str:
    """Verified of all, by kind of model."""
    rows = [["models", *columns], ["---", *("---:" for _ in columns)]]
    counts = Counter(kinds.values())
    for kind, number in (*counts.items(), ("all", len(kinds))):
        chosen = [name for name in kinds if kind in (kinds[name], "all")]
        rows.append([kind, *(f"{sum(not column[name] for name in chosen)} of {number}" for column in columns.values())])
    rate = [
        f"{100 * sum(not problem for problem in column.values()) / len(kinds):.1f} %" for column in columns.values()
    ]
    rows.append(["rate", *rate])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def failures(columns: Mapping[str, Mapping[str, str]]) -> str:
    """One line for each file that was not made."""
    lines = [
        f"- {name}, {column}: {re.sub(r'[`|<>]', '', problem)[:300]}\n"
        for column, problems in columns.items()
        for name, problem in problems.items()
        if problem
    ]
    return "".join(lines) or "None.\n"


def main() -> None:
    """Lowers everything by both, and prints the table and the failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", help="models whose names match")
    parser.add_argument("--recipes", default="xnnpack-fp32,portable-fp32,xnnpack-int8-dynamic")
    parser.add_argument("--write", action="store_true", help="put the table into docs/models-by-name.md")
    options = parser.parse_args()
    recipes = options.recipes.split(",")
    known = list(sources(options.only))
    kinds, models = {name: kind for kind, name, _ in known}, {name: source for _, name, source in known}
    with tempfile.TemporaryDirectory(prefix="pteforge-breadth-") as folder:
        made = ours(models, recipes, Path(folder))
    print(failures(made), flush=True)  # the direct calls take as long again
    columns = {}
    for recipe, found in made.items():
        columns[f"`{recipe}`"] = found
        if recipe in ("xnnpack-fp32", "portable-fp32"):
            columns[f"{recipe.partition('-')[0]}, direct"] = direct(models, recipe.partition("-")[0])
    ours_only = {name: column for name, column in columns.items() if "direct" not in name}
    text = f"{table(kinds, columns)}\nFiles that pteforge did not make:\n\n{failures(ours_only)}"
    print(text)
    print("Files that the direct calls did not make:\n\n" + failures({**columns, **{n: {} for n in ours_only}}))
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
