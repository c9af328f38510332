"""How many architectures come out verified, ours beside ExecuTorch's own calls: small random weights, one file each.

    python benchmarks/breadth.py [--only GLOB] [--kinds KIND,...] [--recipes RECIPE,...] [--sides ours,direct]
                                 [--folder DIR] [--write]

Models are those of transformers that a configuration alone makes, at small sizes, and, where timm is installed, some of
timm. "Direct" exports the same module with the same example inputs, quantizes it as the recipe says, calls
`to_edge_transform_and_lower` and `to_executorch`, runs the file, and compares with eager as the recipe asks for.
A run continues where the last one in the folder stopped. Only what int8 does not make by default is searched. `--write`
puts tables into docs/how-to/models-by-name.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import exporting, markdown, write_zoo

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "models-by-name.md"

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

# With the usual random weights, its values shrink to 1e-40, which XNNPACK takes for 0.
FIELDS = {"mobilevit": {"initializer_range": 0.2}}
# Pteforge's fixed scales end at 2**-40. With the usual weights, all values of these become smaller.
STATIC_FIELDS = {name: {"initializer_range": 0.15} for name in ("mobilenet_v1", "mobilenet_v2")}

TIMM_SIZED = "deit3_small_patch16_224 levit_128s mixer_s32_224 vit_tiny_patch16_224"  # made for one size of images

LAYERS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers"}
LAYERS |= {f"{part}{name}" for part in ("num_", "encoder_", "decoder_") for name in LAYERS}
KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "block_types", "attn_layer_period")  # two layers then
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "embed_dim", "n_embd", "hidden_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "projection_dim", "emb_dim", "moe_intermediate_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("d_inner", "intermediate_dim", "mlp_dim", "image_size"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), 16),
    "vocab_size": 128,
}

# Least SQNR in dB.
RECIPES = {
    "xnnpack-fp32": 80,
    "portable-fp32": 80,
    "xnnpack-int8-dynamic": 20,
    "xnnpack-int8-static": 20,
    "int8-searched": 20,  # ours only
}
SEARCHED = {
    "int8-searched": {
        "extends": "xnnpack-int8-static",
        "quantize": {"search": {"variants": [{"smooth": True}, {"options": {"dynamic": True}}], "budget": 12}},
    }
}
"""What is no shipped recipe."""
STATIC = "xnnpack-int8-static"  # what it makes needs no search
CALIBRATED = {STATIC, *SEARCHED}
SAMPLES = 8  # that recipes with fixed scales are calibrated on
BATCH = 40  # models of one zoo
LIMIT = 1800  # seconds of a stage or a direct call, on a machine that may be busy

Results = dict[str, dict[str, str]]
"""Side to model to the problem, empty for a verified file."""


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that replace those of a configuration and its parts; ids of special tokens beyond the vocabulary are 1."""
    made: dict[str, Any] = {}
    layers = 2 if any(name in config for name in KINDS_OF_LAYERS) else 1
    for name, value in config.items():
        if isinstance(value, dict) and (name.endswith("_config") or "model_type" in value):
            made[name] = shrunk(value)
        elif type(value) is int and name in LAYERS:
            made[name] = layers
        elif type(value) is int and name in SIZES:
            made[name] = min(value, SIZES[name])
        elif isinstance(value, list) and name in ("depths", "stage_num_blocks"):
            made[name] = [1] * len(value)
        elif type(value) is int and name.endswith(("_token_id", "_token_index")) and value >= SIZES["vocab_size"]:
            made[name] = 1
    return made


def sources(only: str, recipe: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, name and source of each model whose name matches."""
    from pteforge.tasks.upstream.torch_export import import_torchvision

    import_torchvision()
    from transformers import CONFIG_MAPPING

    fields = FIELDS | (STATIC_FIELDS if recipe in CALIBRATED else {})
    for kind, names in TRANSFORMERS.items():
        for name in filter(lambda name: fnmatchcase(name, only), names.split()):
            config = shrunk(CONFIG_MAPPING[name]().to_dict()) | fields.get(name, {})
            yield kind, name, {"huggingface": name, "config": config}
    if find_spec("timm"):
        for name in filter(lambda name: fnmatchcase(name, only), TIMM.split()):
            size: dict[str, Any] = {"img_size": 64} if name in TIMM_SIZED.split() else {}
            kwargs = {**size, "pretrained_cfg_overlay": {"input_size": [3, 64, 64]}}
            yield "timm", name, {"timm": name, "pretrained": False, "kwargs": kwargs}


def ours(models: Mapping[str, Any], recipe: str, folder: Path) -> dict[str, str]:
    """Model to the problem."""
    of_each = {"recipes": [recipe], "limits": {"timeout": LIMIT}}
    of_model = {name: {"source": source, **of_each, **calibrated(source, recipe)} for name, source in models.items()}
    command = [*exporting(write_zoo(folder, of_model, recipes=SEARCHED), folder), "--json"]
    with (folder / "log").open("ab") as log:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, check=False)
    outcomes = {model: of_recipes[recipe] for model, of_recipes in json.loads(done.stdout)["models"].items()}
    return {model: "" if outcome.get("file") else problem_of(outcome) for model, outcome in outcomes.items()}


def calibrated(source: Any, recipe: str) -> dict[str, Any]:
    """What a model of a zoo has for a recipe that needs calibration."""
    if recipe not in CALIBRATED:
        return {}
    return {"calibration": {"forward": {"dataset": "breadth:samples", "kwargs": {"source": source}}}}


def samples(source: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Examples that a model by name makes with other random numbers."""
    import torch

    for seed in range(1, SAMPLES + 1):
        torch.manual_seed(seed)
        yield tuple(build(source).get_example_inputs())


def problem_of(outcome: Mapping[str, Any]) -> str:
    """Step and message of a failure in one line; then its causes and the first ways out."""
    message = outcome["problem"].partition("\n")[0]
    causes = (f"{finding['problem']}. Way out: {finding['remedies'][0]}" for finding in outcome["findings"])
    return "\n".join([f"{outcome['step']}: {message}", *causes])


def direct(source: Any, recipe: str) -> str:
    """The problem of one model, in a process of its own."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=report_direct, args=(source, recipe, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LIMIT) else f"took more than {LIMIT} s"
    except EOFError:
        process.join()
        return f"process ended with {process.exitcode}"
    finally:
        process.kill()


PROCESSES = multiprocessing.get_context("forkserver")  # whose server has all these imported
PROCESSES.set_forkserver_preload(
    [
        "executorch.backends.xnnpack.partition.xnnpack_partitioner",
        "executorch.backends.xnnpack.quantizer.xnnpack_quantizer",
        "executorch.runtime",
        "pteforge.tasks.sources.huggingface",
        "torchao.quantization.pt2e.quantize_pt2e",
    ]
)


def report_direct(source: Any, recipe: str, sender: Any) -> None:
    try:
        lower_directly(source, recipe)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the result
        sender.send(f"{type(error).__name__}: {str(error).strip()}")
    else:
        sender.send("")


def lower_directly(source: Mapping[str, Any], recipe: str) -> None:
    """Lowers and checks a model as ExecuTorch's documentation does."""
    import torch
    from executorch.runtime import Runtime

    torch.manual_seed(0)
    torch.set_num_threads(1)
    made = build(source)
    module, inputs = made.get_eager_model(), made.get_example_inputs()
    with torch.no_grad():
        wanted = module(*inputs)
        observed = samples(source) if "static" in recipe else [inputs]
        file = file_of(module, inputs, recipe, observed)
    found = Runtime.get().load_program(file).load_method("forward").execute(list(inputs))
    for output, value in zip(found, torch.utils._pytree.tree_leaves(wanted), strict=True):  # noqa: SLF001
        noise = (output.double() - value.double()).pow(2).sum()
        sqnr = 10 * torch.log10(value.double().pow(2).sum() / noise)
        if noise and not sqnr >= RECIPES[recipe]:
            raise ValueError(f"{sqnr:.1f} dB from eager; the recipe asks for {RECIPES[recipe]}")


def file_of(module: Any, inputs: tuple[Any, ...], recipe: str, observed: Iterable[tuple[Any, ...]]) -> bytes:
    """A file as ExecuTorch's documentation makes it; quantizers observe samples."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        program = torch.export.export(module, inputs)
        if "int8" in recipe:
            settings = get_symmetric_quantization_config(is_per_channel=True, is_dynamic="dynamic" in recipe)
            prepared = prepare_pt2e(program.module(), XNNPACKQuantizer().set_global(settings))
            for sample in observed:
                prepared(*sample)
            program = torch.export.export(convert_pt2e(prepared), inputs)
        partitioner = [XnnpackPartitioner()] if recipe.startswith("xnnpack") else []
        return bytes(to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch().buffer)


def build(source: Mapping[str, Any]) -> Any:
    from pteforge.tasks.sources import huggingface

    if "timm" not in source:
        return huggingface.Model(source["huggingface"], config=source["config"])
    from pteforge.tasks.sources import image_models

    return image_models.TimmModel(source["timm"], source["kwargs"], pretrained=False)


class Record:
    """Results of one column, in a file: the problem by name, empty for what is `right`."""

    def __init__(self, folder: Path, column: str, again: Callable[[str], object], right: str = "verified") -> None:
        """Forgets the problems that are to be tried again."""
        self.folder = folder
        self._path, self._right = folder / f"{column}.json", right
        known: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        self.problems = {name: problem for name, problem in known.items() if not (problem and again(problem))}

    def add(self, problems: Mapping[str, str]) -> None:
        self.problems |= problems
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.problems, indent=1), encoding="utf-8")
        temporary.replace(self._path)
        for name, problem in problems.items():
            print(f"{self._path.stem}: {name}: {problem.partition(chr(10))[0][:200] or self._right}", flush=True)


def measure(models: Mapping[str, Any], recipe: str, side: str, record: Record) -> None:
    """Adds what the record does not have."""
    left = {name: source for name, source in models.items() if name not in record.problems}
    if side == "ours" and left:
        record.add(ours(left, recipe, record.folder))
    elif side == "direct":
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, problem in zip(left, pool.map(partial(direct, recipe=recipe), left.values()), strict=True):
                record.add({name: problem})


def section(recipe: str, kinds: Mapping[str, str], sides: Results, folder: Path) -> str:
    """A recipe in the tables: how many of those that were run came out verified, and the failures."""
    rows = [["models", *sides]]
    for kind in (*dict.fromkeys(kinds.values()), "all"):
        chosen = [name for name in kinds if kind in (kinds[name], "all")]
        cells = []
        for problems in sides.values():
            run = [problems[name] for name in chosen if name in problems]
            cells.append(f"{run.count('')} of {len(run)}" + (" run" if len(run) < len(chosen) else ""))
        rows.append([kind, *cells])
    rates = [100 * [*problems.values()].count("") / len(problems) for problems in sides.values()]
    rows.append(["rate", *(f"{rate:.1f} %" for rate in rates)])
    verified = [name for name in kinds if sides.get("ours", {}).get(name) == ""]
    of_all = ""
    for what, tables in (("our weights", True), ("those of layers, without tables of embeddings", False)):
        if shares := [*integers(folder, recipe, verified, tables=tables)]:
            least = min(shares)
            of_all += f"\nIntegers of {what}: {sum(shares) / len(shares):.0%} on average, {least:.0%} at least.\n"
    return "".join([f"### {recipe}\n\n{markdown(rows)}", of_all, *(failures(*each, kinds) for each in sides.items())])


def integers(folder: Path, recipe: str, names: Sequence[str], *, tables: bool) -> Iterator[float]:
    """The share of integer weights in each file that was quantized, with or without tables of embeddings."""
    for name in names:
        reports = [folder / "out" / name / f"{each}.json" for each in (recipe, STATIC)]
        methods = json.loads(next(filter(Path.exists, reports)).read_bytes())["findings"].get("quantization", [])
        left = [weight for each in methods for weight in each["left"] if "tables of embeddings" in weight["why"]]
        elements = sum(each["elements"] for each in methods)
        elements -= 0 if tables else sum(weight["elements"] for weight in left)
        if elements:
            yield sum(each["quantized"] for each in methods) / elements


def failures(side: str, problems: Mapping[str, str], kinds: Mapping[str, str]) -> str:
    """Which models fail with which message, shortened; on our side also the first cause of the first of them."""
    alike: dict[str, list[str]] = {}
    for name in kinds:
        if problems.get(name):
            alike.setdefault(problems[name] if side == "ours" else problems[name].partition("\n")[0], []).append(name)
    lines = [f"\nFailures, {side}:\n\n"] if alike else []
    for problem, names in sorted(alike.items(), key=lambda item: -len(item[1])):
        message, _, causes = re.sub(r"[`|<>*]", "", problem).partition("\n")
        lines.append(f"- {', '.join(names)}: {' '.join(message[:160].split())}\n")
        lines += [f"  - {cause}\n" for cause in causes.splitlines()[:1]]
    return "".join(lines)


def write_section(file: Path, name: str, text: str) -> None:
    """Puts text into a page, between its marks of that name."""
    begin, end = (f"<!-- {name}: {mark} -->\n" for mark in ("begin", "end"))
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    file.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    """Lowers everything that is not in the folder yet, and prints a table and the failures for each recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", help="models whose names match")
    parser.add_argument("--kinds", default=",".join((*TRANSFORMERS, "timm")))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--sides", default="ours,direct")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-breadth")
    parser.add_argument("--retry", action="store_true", help="run again what failed before")
    parser.add_argument("--table", action="store_true", help="run nothing; print what the folder has")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/how-to/models-by-name.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for recipe in options.recipes.split(","):
        known = [source for source in sources(options.only, recipe) if source[0] in options.kinds.split(",")]
        kinds = {name: kind for kind, name, _ in known}
        records = {
            side: Record(options.folder, f"{recipe}, {side}", lambda _: options.retry)
            for side in options.sides.split(",")
        }
        if recipe in SEARCHED and "ours" in records:
            by_default = Record(options.folder, f"{STATIC}, ours", lambda _: False).problems
            records["ours"].problems |= {name: "" for name in kinds if by_default.get(name) == ""}
        for first in range(0, len(known), BATCH):
            batch = {name: source for _, name, source in known[first : first + BATCH]}
            for side, record in () if options.table else records.items():
                measure(batch, recipe, side, record)
        text = section(recipe, kinds, {side: record.problems for side, record in records.items()}, options.folder)
        print(text)
        if options.write:
            write_section(PAGE, f"benchmarks/breadth.py --write: {recipe}", text)


if __name__ == "__main__":
    main()
