"""What 4-bit weights cost a trained language model in perplexity, rounded to the nearest and by samples.

    python benchmarks/rounding.py [--steps N] [--folder DIR] [--write]

A Llama with 2.2 million parameters learns the documentation that comes with Python (`pydoc_data` and docstrings of the
standard library), which takes minutes, and once per folder. Modules in turn are held out: their text scores. Others
calibrate. `--write` puts the table into docs/how-to/quantization-repair.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from breadth import write_section
from measuring import export, markdown, size_of, write_zoo
from torch import Tensor

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "quantization-repair.md"
VOCABULARY = 1024
WINDOW = 128  # tokens
SCORED = 16384  # tokens
SAMPLES = 128  # for calibration


def layers(**fields: Any) -> dict[str, Any]:
    return {"extends": "xnnpack-llm-8da4w", "quantize_layers": {"linear": "8da4w", **fields}}


RECIPES: dict[str, dict[str, Any]] = {
    "fp32": {"extends": "xnnpack-fp32"},
    "nearest": layers(),
    "hqq": layers(rounding="hqq"),
    "gptq": layers(rounding="gptq"),
    "rotate": layers(equalize=["rotate"]),
    "awq": layers(equalize=["awq"]),
    "awq-hqq": layers(equalize=["awq"], rounding="hqq"),
    "awq-gptq": layers(equalize=["awq"], rounding="gptq"),
    "rotate-gptq": layers(equalize=["rotate"], rounding="gptq"),
}


def texts() -> Iterator[str]:
    """Texts about Python, in a fixed order."""
    for _, text in sorted(topics.items()):
        yield text
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) for node in ast.walk(module) if isinstance(node, documented))
        yield "\n\n".join(filter(None, found))


def train(folder: Path, steps: int) -> None:
    """Trains a tokenizer and a model, and saves both, with the text that is held out."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    everything = [text for text in texts() if len(text) > 200]
    learned = [text for number, text in enumerate(everything) if number % 10]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(learned, VOCABULARY, show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer).save_pretrained(folder)  # noqa: SLF001 - has no other way
    (folder / "held_out.txt").write_text("\n\n".join(everything[::10]), encoding="utf-8")
    tokens = torch.tensor(bpe.encode("\n\n".join(learned)).ids)
    torch.save(tokens, folder / "tokens.pt")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    began = time.monotonic()
    for step in range(steps):
        starts = torch.randint(len(tokens) - WINDOW, (16,))
        batch = torch.stack([tokens[start : start + WINDOW] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} of {steps}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
    model.save_pretrained(folder)


def windows(folder: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples for calibration: windows of the text that was learned, and where they start."""
    tokens = torch.load(Path(folder) / "tokens.pt")
    for start in range(0, len(tokens) - WINDOW, len(tokens) // SAMPLES):
        yield tokens[None, start : start + WINDOW], torch.tensor([0])


def main() -> None:
    """Trains, exports, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3000, help="of training (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-rounding")
    parser.add_argument("--write", action="store_true", help="put the table into docs/how-to/quantization-repair.md")
    options = parser.parse_args()
    checkpoint = options.folder / "model"
    if not (checkpoint / "config.json").is_file():
        train(checkpoint, options.steps)
    model = {
        "source": {"huggingface": str(checkpoint), "task": "text-generation", "sequence": WINDOW},
        "calibration": {
            "forward": {"dataset": "rounding:windows", "kwargs": {"folder": str(checkpoint)}, "samples": SAMPLES}
        },
        "accuracy": {
            "evaluator": "pteforge.evaluators:neg_perplexity",
            "kwargs": {"text": str(checkpoint / "held_out.txt"), "tokenizer": str(checkpoint), "tokens": SCORED},
            "floor": -1e4,
        },
        "recipes": [*RECIPES],
    }
    zoo = write_zoo(options.folder, {"llama": model}, recipes=RECIPES)
    files = json.loads(export(zoo, options.folder, "--json"))["models"]["llama"]
    perplexities = {name: -file["accuracy"]["file"]["scores"][0]["score"] for name, file in files.items()}
    lost = {name: value - perplexities["fp32"] for name, value in perplexities.items()}
    rows = [["weights", "bytes", "perplexity", "lost", "of it won back"]]
    for name, value in perplexities.items():
        size = size_of([options.folder / "out" / "llama" / f"{name}.pte"])
        won = "" if name in ("fp32", "nearest") else f"{1 - lost[name] / lost['nearest']:.0%}"
        rows.append([name, f"{size:,}", f"{value:.3f}", f"{lost[name]:.3f}", won])
    text = markdown(rows)
    print(text)
    if options.write:
        write_section(PAGE, "benchmarks/rounding.py --write", text)


if __name__ == "__main__":
    main()
