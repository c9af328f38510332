"""Builds the models of optimum-executorch's tests by name, small and with random weights, and lets them generate.

    python benchmarks/named_models.py [--only GLOB] [--folder DIR] [--write]

Each is exported with xnnpack-fp32, which verifies the file. Then ExecuTorch's runtime continues prompts with the file,
greedily, and the tokens are compared with those of eager's `generate`. Stages stay in the folder: a run continues
where the last one stopped. `--write` puts the table, or the rows of `--only`, into docs/reference/supported-models.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from breadth import problem_of, shrunk, write_section
from measuring import exporting, markdown, write_zoo

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "supported-models.md"
RECIPE = "xnnpack-fp32"
CONTEXT, TOKENS = 64, 24
BATCH = 7  # models of one zoo


def kinds(same: str, **others: str) -> dict[str, str]:
    """Names of models and their kinds, most of which are the same, by name."""
    return dict(sorted(({name: name for name in same.split()} | others).items()))


# The model of each of optimum-executorch's files tests/models/test_modeling_*.py; Gemma 3 has two.
TEXT = kinds(
    "codegen gemma gemma2 glm gpt2 gptj granite llama mistral olmo phi qwen2 qwen3 smollm3 starcoder2",
    gemma3="gemma3_text",
    gptneox="gpt_neox",
    gptneoxjapanese="gpt_neox_japanese",
    phi4="phi3",
    qwen3_embedding="qwen3",
    smollm="llama",
)
OTHERS = {
    "fill-mask": kinds("albert bert distilbert", roberta="xlm-roberta"),
    "image-classification": kinds(
        "cvt deit efficientnet focalnet mobilevit pvt swin vit", dit="beit", mobilevit2="mobilevitv2"
    ),
    "object-detection": {"detr": "detr"},
    "text2text-generation": {"t5": "t5"},
    "automatic-speech-recognition": {"whisper": "whisper"},
    "image-text-to-text": {"gemma3 (images)": "gemma3"},
    "audio-text-to-text": {"granite_speech": "granite_speech", "voxtral": "voxtral"},
}
TASKS = {"text-generation": TEXT, **OTHERS}

# What optimum-executorch's test of a model checks of what the file returns; of text models: the text's perplexity.
OPTIMUM_CHECKS = {
    "fill-mask": "one word",
    "image-classification": "logits of eager",
    "object-detection": "logits and boxes of eager",
    "text2text-generation": "a fixed text",
    "automatic-speech-recognition": "a fixed text",
    "image-text-to-text": "words of the text, its perplexity",
    "audio-text-to-text": "words of the text, its perplexity",
}
OPTIMUM_ONLY_RUNS = {"gemma"}
OPTIMUM_NOT_IN_CI = {"gemma2", "gemma3 (images)", "gptneoxjapanese", "granite_speech", "smollm3", "voxtral"}
# transformers' tests of its exporter for ExecuTorch leave dynamic sizes of these out.
STATIC_IN_TRANSFORMERS = {"efficientnet", "swin"}
# `ModelType` of executorch/extension/llm/export/config/llm_config.py
EXPORT_LLM = {"llama", "phi4", "qwen2", "qwen3", "smollm"}

RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 16, 32], "depths": [1, 1, 1, 1]}
WINDOWS = ["sliding_attention", "full_attention"]
LAYERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**LAYERS, "head_dim": 8, "num_key_value_heads": 2, "vocab_size": 128}
FIELDS: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8, "n_head": 4},  # its code splits heads in four parts
    "cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2]},
    "detr": {"backbone_config": {**RESNET, "out_features": ["stage4"]}, "num_queries": 8},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "initializer_range": 0.6},
    "gemma3": {
        "text_config": {**SMALL, "model_type": "gemma3_text", "sliding_window": 8, "layer_types": WINDOWS},
        "vision_config": {**LAYERS, "model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8},
        "mm_tokens_per_image": 4,
        "image_token_id": 99,
    },
    "gptj": {"rotary_dim": 8},
    "granite_speech": {
        "text_config": {**SMALL, "model_type": "granite"},
        "encoder_config": {
            "input_dim": 16,
            "output_dim": 12,
            "hidden_dim": 32,
            "context_size": 20,
            "max_pos_emb": 32,
            "num_layers": 2,
            "num_heads": 4,
        },
        "projector_config": {**SMALL, "model_type": "blip_2_qformer", "encoder_hidden_size": 32},
        "audio_token_index": 128,
        "has_lora_adapter": False,
    },
    "mobilevit": {"initializer_range": 0.2},  # with the usual one, values shrink to 1e-40
    "mobilevitv2": {"initializer_range": 0.2, "width_multiplier": 0.5},
    "starcoder2": {"sliding_window": 16},
    "swin": {"num_heads": [2, 4, 8, 16], "window_size": 2},
    "t5": {"initializer_factor": 4.0},
    "voxtral": {
        "text_config": {**SMALL, "model_type": "llama"},
        "audio_config": {**SMALL, "num_mel_bins": 16, "max_source_positions": 32, "intermediate_size": 64},
        "audio_token_id": 99,
    },
    "whisper": {"max_source_positions": 50, "max_target_positions": CONTEXT, "num_mel_bins": 8},
}


def sources(only: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Task, name and source of each model whose name matches."""
    from pteforge.tasks.upstream.torch_export import import_torchvision

    import_torchvision()
    from transformers import CONFIG_MAPPING

    for task, models in TASKS.items():
        for name, kind in models.items():
            if not fnmatchcase(name, only):
                continue
            sizes = {} if task.endswith("-text-to-text") else shrunk(CONFIG_MAPPING[kind]().to_dict())
            config = {**sizes, **FIELDS.get(kind, {})}
            length = {"sequence": CONTEXT} if task in GENERATORS else {}
            frames = {"audio_frames": 50} if kind == "granite_speech" else {}
            yield task, name, {"huggingface": kind, "task": task, "config": config, **length, **frames}


def exported(models: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Model to the problem, empty for a file that was verified."""
    zoo = {slug(name): {"source": source, "recipes": [RECIPE]} for name, source in models.items()}
    with (folder / "log").open("ab") as log:
        command = [*exporting(write_zoo(folder, zoo), folder), "--json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, check=False)
    outcomes = {name: json.loads(done.stdout)["models"][slug(name)][RECIPE] for name in models}
    return {name: "" if outcome.get("file") else problem_of(outcome) for name, outcome in outcomes.items()}


def slug(name: str) -> str:
    """A name that a model of a zoo may have."""
    return "".join(letter if letter.isalnum() else "_" for letter in name).strip("_")


def result_of(task: str, name: str, source: Mapping[str, Any], problem: str, folder: Path) -> list[str]:
    """Whether the file was verified, and what it generates."""
    if problem:
        return [problem.partition("\n")[0], ""]
    file = folder / "out" / slug(name) / f"{RECIPE}.pte"
    return ["verified", generates(task, source, file) if task in GENERATORS else ""]


def peers_of(task: str, name: str) -> list[str]:
    """What optimum-executorch, transformers.exporters and export_llm do for a model."""
    checked = "runs only" if name in OPTIMUM_ONLY_RUNS else OPTIMUM_CHECKS.get(task, "the text's perplexity")
    if name in OPTIMUM_NOT_IN_CI:
        checked += "; not in its CI"
    theirs = "outputs counted" if task in ("fill-mask", "image-classification", "object-detection") else "ids of eager"
    if name in STATIC_IN_TRANSFORMERS:
        theirs += "; static sizes only"
    return [checked, theirs, "makes" if name in EXPORT_LLM else ""]


def generates(task: str, source: Mapping[str, Any], file: Path) -> str:
    """How many tokens after several prompts are those of eager's `generate`, or which is not."""
    import torch
    from executorch.runtime import Runtime
    from pteforge.tasks.usercode.model_source import seed_everything

    torch.set_num_threads(1)
    # a program for each method: those of one overwrite each other's memory
    program = SimpleNamespace(load_method=lambda name: Runtime.get().load_program(file).load_method(name))
    seed_everything(0)
    counted = 0
    with torch.no_grad():
        for step, wanted, prompt in GENERATORS[task](program, source):
            given, start = prompt, 0
            for token in wanted:
                if int(step(given, torch.tensor([start])).argmax()) != token:
                    return f"token {counted} differs"
                given, start, counted = torch.tensor([[token]]), start + given.shape[1], counted + 1
    return f"{counted} tokens equal eager's"


Steps = Iterator[tuple[Callable[..., Any], list[int], Any]]
"""For each prompt: a function of tokens and their start that returns logits, eager's tokens, and the prompt."""


def text_steps(program: Any, source: Mapping[str, Any]) -> Steps:
    import torch
    from pteforge.tasks.sources.text_generation import model

    made = model(source["huggingface"], task=source["task"], config=source["config"], sequence=CONTEXT)
    net, forward = made.methods["forward"].module.model, program.load_method("forward")
    for length in LENGTHS:
        prompt = torch.randint(5, net.config.vocab_size, (1, length))
        said = net.generate(prompt, attention_mask=torch.ones_like(prompt), eos_token_id=None, **GREEDY)
        yield lambda *given: forward.execute(given)[0], said[0, length:].tolist(), prompt


def encoder_steps(program: Any, source: Mapping[str, Any]) -> Steps:
    import torch
    from pteforge.tasks.sources.encoder_decoder import model
    from transformers import GenerationMixin

    made = model(source["huggingface"], task=source["task"], config=source["config"], sequence=CONTEXT)
    net, (example,) = made.methods["encoder"].module.model, made.methods["encoder"].example_inputs[0]
    encoder, decoder = program.load_method("encoder"), program.load_method("text_decoder")
    first = torch.tensor([[made.constant_methods["decoder_start_token_id"]]])
    for length in LENGTHS:
        is_text = example.dtype is torch.int64
        inputs = torch.randint(5, net.config.vocab_size, (1, length)) if is_text else torch.randn_like(example)
        (encoded,) = encoder.execute([inputs])
        mask = {"attention_mask": torch.ones_like(inputs)} if is_text else {}
        begin = {"decoder_start_token_id": int(first), "eos_token_id": -1}
        said = GenerationMixin.generate(net, inputs, **begin, **mask, **GREEDY)
        yield lambda *given, e=encoded: decoder.execute([given[0], e, given[1]])[0], said[0, 1:].tolist(), first


def part_steps(program: Any, source: Mapping[str, Any]) -> Steps:
    """Prompts of a text, an image or a sound, and a text."""
    import inspect

    import torch
    from pteforge.tasks.sources import audio_text, multimodal

    is_image = source["task"].startswith("image")
    fields = {name: value for name, value in source.items() if name != "huggingface"}
    made = (multimodal if is_image else audio_text).model(source["huggingface"], **fields)
    name, token = ("vision_encoder", "image_token_id") if is_image else ("audio_encoder", "audio_token_id")
    encoder, special = made.methods[name].module, made.constant_methods[token]
    taken = inspect.signature(encoder.model.forward).parameters
    embed, decoder = program.load_method("token_embedding"), program.load_method("text_decoder")
    for length in SHORT:
        text, prompt = (torch.randint(5, 90, (1, length)) for _ in range(2))
        values = torch.randn_like(made.methods[name].example_inputs[0][0])
        before = [embed.execute([text])[0], program.load_method(name).execute([values])[0]]
        ids = torch.cat([text, torch.full((1, before[1].shape[1]), special), prompt], dim=1)
        given = {**encoder.inputs.of(values), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given |= dict.fromkeys({"token_type_ids", "mm_token_type_ids"} & taken.keys(), (ids == special).long())
        said = encoder.model.generate(**given, eos_token_id=-1, **GREEDY)[0, ids.shape[1] :]
        yield partial(after_parts, embed, decoder, before), said.tolist(), prompt


def after_parts(embed: Any, decoder: Any, before: list[Any], tokens: Any, start: Any) -> Any:
    """The logits after tokens whose start is counted from the end of the parts before them."""
    at = start + sum(part.shape[1] for part in before) if start else start
    for part in (*(() if start else before), embed.execute([tokens])[0]):
        (logits,) = decoder.execute([part, at])
        at = at + part.shape[1]
    return logits


SHORT = (1, 5, 9)  # texts around an image or a sound
LENGTHS = (1, 7, 23)  # of prompts
GREEDY = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
GENERATORS = {
    "text-generation": text_steps,
    "text2text-generation": encoder_steps,
    "automatic-speech-recognition": encoder_steps,
    "image-text-to-text": part_steps,
    "audio-text-to-text": part_steps,
}


def main() -> None:
    """Exports what is not in the folder yet, lets it generate, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", help="models whose names match")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-named")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/supported-models.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = [["model", "task", "pteforge: file", "greedy text", "optimum-executorch", "transformers", "export_llm"]]
    known = [*sources(options.only)]
    for first in range(0, len(known), BATCH):
        batch = known[first : first + BATCH]
        problems = exported({name: source for _, name, source in batch}, options.folder)
        for task, name, source in batch:
            result = result_of(task, name, source, problems[name], options.folder)
            rows.append([name, task, *result, *peers_of(task, name)])
            print(*rows[-1], sep=" | ", flush=True)
    if options.write and options.only == "*":
        write_section(PAGE, "benchmarks/named_models.py --write", markdown(rows))
    elif options.write:
        written = {line.split(" | ")[0]: line for line in markdown(rows[1:]).splitlines()}
        lines = [written.get(line.split(" | ")[0], line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
        PAGE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
