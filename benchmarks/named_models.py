"""Builds the models of optimum-executorch's tests by name, small and with random weights, and lets them generate.

    python benchmarks/named_models.py [--only GLOB] [--folder DIR] [--write]

Each is exported with xnnpack-fp32, which verifies the file. Then ExecuTorch's runtime continues prompts with the file,
greedily, and the tokens are compared with those of eager's `generate`. Stages stay in the folder: a run continues
where the last one stopped. `--write` puts the table into docs/reference/supported-models.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from breadth import problem_of, shrunk, write_section
from measuring import exporting, markdown, write_zoo

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "supported-models.md"
RECIPE = "xnnpack-fp32"
CONTEXT, TOKENS = 64, 24
BATCH = 7  # models of one zoo

# The model of each of optimum-executorch's files tests/models/test_modeling_*.py; Gemma 3 has two.
TEXT = {
    "codegen": "codegen",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "glm": "glm",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "gptneoxjapanese": "gpt_neox_japanese",
    "granite": "granite",
    "llama": "llama",
    "mistral": "mistral",
    "olmo": "olmo",
    "phi": "phi",
    "phi4": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_embedding": "qwen3",
    "smollm": "llama",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
OTHERS = {
    "fill-mask": {"albert": "albert", "bert": "bert", "distilbert": "distilbert", "roberta": "xlm-roberta"},
    "image-classification": {
        "cvt": "cvt",
        "deit": "deit",
        "dit": "beit",
        "efficientnet": "efficientnet",
        "focalnet": "focalnet",
        "mobilevit": "mobilevit",
        "mobilevit2": "mobilevitv2",
        "pvt": "pvt",
        "swin": "swin",
        "vit": "vit",
    },
    "object-detection": {"detr": "detr"},
    "text2text-generation": {"t5": "t5"},
    "automatic-speech-recognition": {"whisper": "whisper"},
    "image-text-to-text": {"gemma3 (images)": "gemma3"},
    "audio-text-to-text": {"granite_speech": "granite_speech", "voxtral": "voxtral"},
}
TASKS = {"text-generation": TEXT, **OTHERS}

RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 16, 32], "depths": [1, 1, 1, 1]}
FIELDS: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8, "n_head": 4},  # its code splits heads in four parts
    "detr": {
        "backbone_config": {**RESNET, "out_features": ["stage4"]},
        "num_queries": 8,
    },
    "cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2]},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 64},
    "gptj": {"rotary_dim": 8},
    "mobilevit": {"initializer_range": 0.2},  # with the usual one, values shrink to 1e-40
    "starcoder2": {"sliding_window": 16},
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
            config = shrunk(CONFIG_MAPPING[kind]().to_dict()) | FIELDS.get(kind, {})
            length = {"sequence": CONTEXT} if "generation" in task or "speech" in task else {}
            yield task, name, {"huggingface": kind, "task": task, "config": config, **length}


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


def generates(task: str, source: Mapping[str, Any], file: Path) -> str:
    """How many tokens after several prompts are those of eager's `generate`, or which is not."""
    import torch
    from executorch.runtime import Runtime
    from pteforge.tasks.usercode.model_source import seed_everything

    torch.set_num_threads(1)
    program = Runtime.get().load_program(file)
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
        said = GenerationMixin.generate(net, inputs, decoder_input_ids=first, eos_token_id=-1, **mask, **GREEDY)
        yield lambda *given, e=encoded: decoder.execute([given[0], e, given[1]])[0], said[0, 1:].tolist(), first


LENGTHS = (1, 7, 23)  # of prompts
GREEDY = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
GENERATORS = {
    "text-generation": text_steps,
    "text2text-generation": encoder_steps,
    "automatic-speech-recognition": encoder_steps,
}


def main() -> None:
    """Exports what is not in the folder yet, lets it generate, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", help="models whose names match")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-named")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/supported-models.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = [["model", "task", "file", "greedy text"]]
    known = [*sources(options.only)]
    for first in range(0, len(known), BATCH):
        batch = known[first : first + BATCH]
        problems = exported({name: source for _, name, source in batch}, options.folder)
        for task, name, source in batch:
            rows.append([name, task, *result_of(task, name, source, problems[name], options.folder)])
            print(*rows[-1], sep=" | ", flush=True)
    if options.write:
        write_section(PAGE, "benchmarks/named_models.py --write", markdown(rows))


if __name__ == "__main__":
    main()
