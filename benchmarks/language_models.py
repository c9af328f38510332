"""Compares the ways in which a language model can keep its keys and values: memory and time for each token.

A Llama with random weights is lowered for XNNPACK with torch's attention, with ExecuTorch's operators, and with these
and a cache in int8; with a method for one token; and, as Mistral, with windows. Files take turns to add a token.
"""

from __future__ import annotations

import argparse
import time
from itertools import zip_longest
from pathlib import Path
from statistics import median

from measuring import export, temporary_folder, write_zoo

FORMS = {
    "torch's attention": {},
    "custom_sdpa": {"attention": "custom_sdpa"},
    "custom_sdpa, int8": {"attention": "custom_sdpa", "cache": "int8"},
    "decode_step": {"prefill": True},
    "decode_step, custom_sdpa": {"prefill": True, "attention": "custom_sdpa"},
    "windows": {"huggingface": "mistral"},
    "windows, custom_sdpa": {"huggingface": "mistral", "attention": "custom_sdpa"},
    "windows, int8": {"huggingface": "mistral", "attention": "custom_sdpa", "cache": "int8"},
    "sinks": {"sinks": 4},
}
RECIPE = "chat"
WINDOW = 128
_METHODS = ("forward", "prefill", "decode_step")


def lower(folder: Path, context: int, layers: int, width: int) -> list[Path]:
    """Lowers all forms; returns their files."""
    config = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 64,
        "vocab_size": 1000,
        "max_position_embeddings": context,
    }
    shared = {"huggingface": "llama", "task": "text-generation", "sequence": context, "config": config}
    models = {f"m{number}": {"source": {**shared, **form}} for number, form in enumerate(FORMS.values())}
    for model in models.values():
        if model["source"]["huggingface"] == "mistral":
            model["source"]["config"] = {**config, "sliding_window": WINDOW}
        if "sinks" in model["source"]:
            model["source"] |= {"sequence": WINDOW, "config": {**config, "max_position_embeddings": 2 * WINDOW}}
    recipes = {RECIPE: {"extends": "xnnpack-fp32", "compile": {"share_mutable_buffers": True}}}
    export(write_zoo(folder, models, defaults={"recipes": [RECIPE]}, recipes=recipes), folder)
    return [folder / "out" / model / f"{RECIPE}.pte" for model in models]


def measure(files: list[Path], context: int, tokens: int) -> tuple[list[int], list[float]]:
    """Planned bytes of each file, all methods in one, and median seconds for a token, half of the context filled."""
    import torch
    from pteforge.formats.pte.reader import open_pte
    from pteforge.runtime import load

    programs = [load(file) for file in files]
    planned = []
    for file in files:
        arenas = [method.planned_memory for method in open_pte(file).methods]
        planned.append(sum(max(sizes) for sizes in zip_longest(*arenas, fillvalue=0)))
    methods = [
        {name: kept.load_method(name) for name, kept in program._programs.items() if name in _METHODS}  # noqa: SLF001 - `run` loads
        for program in programs
    ]
    start = context // 2
    for names in methods:
        first = names.get("prefill") or names["forward"]
        for position in range(0, start, WINDOW):
            first.execute([torch.ones(1, min(WINDOW, start - position), dtype=torch.int64), torch.tensor([position])])
    loaded = [names.get("decode_step") or names["forward"] for names in methods]
    seconds: list[list[float]] = [[] for _ in files]
    for position in range(start, start + tokens):
        for method, taken in zip(loaded, seconds, strict=True):
            began = time.perf_counter()
            method.execute([torch.ones(1, 1, dtype=torch.int64), torch.tensor([position])])
            taken.append(time.perf_counter() - began)
    return planned, [median(taken) for taken in seconds]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--tokens", type=int, default=50, help="to generate")
    arguments = parser.parse_args()
    with temporary_folder() as folder:
        files = lower(folder, arguments.context, arguments.layers, arguments.width)
        planned, seconds = measure(files, arguments.context, arguments.tokens)
    print(f"{'':<26}{'planned memory':>16}{'ratio':>8}{'time per token':>16}{'ratio':>8}")
    for name, size, taken in zip(FORMS, planned, seconds, strict=True):
        print(
            f"{name:<26}{size / 2**20:>12.1f} MiB{size / planned[0]:>8.3f}"
            f"{1000 * taken:>13.2f} ms{taken / seconds[0]:>8.2f}"
        )


if __name__ == "__main__":
    main()
