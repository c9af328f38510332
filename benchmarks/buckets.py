"""Compares buckets of a text model with one dynamic size: planned memory, size of the file, and time of a short text.

A BERT with random weights is lowered for XNNPACK three times: with a dynamic sequence, with one bucket, and with all.
Ratios are to the dynamic file; time is the median of calls in turns.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

from measuring import arguments_of, temporary_folder


def measure(sizes: list[int], layers: int, hidden: int, calls: int) -> dict[str, Any]:
    """Planned bytes and seconds of a text as long as the smallest bucket, by file and method, and the files' bytes."""
    import pteforge
    import torch
    from executorch.runtime import Runtime
    from pteforge.formats.pte.reader import read_pte
    from pteforge.tasks.usercode.model_source import build, seed_everything

    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden}
    config = {**shape, "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": sizes[-1] + 2}
    seed_everything(0)
    source = {"name": "bert", "config": config, "batch": 1, "sequence": sizes[-1]}
    model = build("pteforge.tasks.sources.huggingface:Model", source).definition
    forms = {"dynamic": None, "one": {"sequence": sizes[:1]}, "all": {"sequence": sizes}}
    with temporary_folder() as folder:
        results = {
            name: pteforge.export(model, recipe="xnnpack-fp32", buckets=buckets, store=folder)
            for name, buckets in forms.items()
        }
        files = {name: result.pte for name, result in results.items()}
        saved = {name: results[name].save(folder / f"{name}.pte") for name in ("dynamic", "all")}
        programs = {name: Runtime.get().load_program(path) for name, path in saved.items()}
    planned = {
        f"{name}: {method.name}": sum(method.planned_memory)
        for name, file in files.items()
        for method in read_pte(memoryview(file)).methods
        if not method.constant
    }
    text = [torch.randint(1000, (1, sizes[0])), torch.ones(1, sizes[0], dtype=torch.int64)]
    method_of = {"dynamic": "forward", "all": f"forward_{sizes[0]}"}
    methods = {name: program.load_method(method_of[name]) for name, program in programs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(calls):
        for name, method in methods.items():
            began = time.perf_counter()
            method.execute(text)
            seconds[name].append(time.perf_counter() - began)
    bytes_of = {name: len(file) for name, file in files.items()}
    return {"planned": planned, "seconds": {name: median(own) for name, own in seconds.items()}, "bytes": bytes_of}


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    found = measure(arguments.sizes, arguments.layers, arguments.hidden, arguments.calls)
    if arguments.json:
        print(json.dumps(found))
        return
    whole = found["planned"]["dynamic: forward"]
    for name, size in found["planned"].items():
        print(f"{name:<24}{size:>12,} bytes planned{size / whole:>8.3f}")
    print(f"file, all buckets by one:    {found['bytes']['all'] / found['bytes']['one']:.3f}")
    print(f"file, all by dynamic:        {found['bytes']['all'] / found['bytes']['dynamic']:.3f}")
    print(f"time of a short text:        {found['seconds']['all'] / found['seconds']['dynamic']:.3f}")


if __name__ == "__main__":
    main()
