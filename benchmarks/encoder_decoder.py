"""Compares the ways in which a model with an encoder and a decoder can generate: time for each token.

Networks of the shape of Whisper and T5, with random weights, are lowered for XNNPACK in three forms: with the methods
`encoder` and `text_decoder`; with a `text_decoder` that takes the encoder's states and projects them to keys and values
for each token; and with one method that takes all tokens. Then the files take turns to continue by one token. With
`--eager`, nothing is lowered: PyTorch runs the modules with one thread, and CPU time is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from measuring import export, temporary_folder, write_zoo

HEADS = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "whisper": ("automatic-speech-recognition", {"d_model": 384, **HEADS}),
    "t5": ("text2text-generation", {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8}),
}
"""As large as whisper-tiny and t5-small, but for the number of layers and the vocabulary."""

RECIPE = "xnnpack-fp32"
FORMS = ("encoder, text_decoder", "states projected for each token", "one forward")


def projecting(**fields: Any) -> Any:
    """The model with a decoder that takes the encoder's states."""
    import torch
    from pteforge.tasks.sources import encoder_decoder as own

    class Encoder(own.Encoder):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.model.get_encoder()(inputs).last_hidden_state

    class Decoder(own.Decoder):
        def forward(self, tokens: torch.Tensor, encoded: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            cross = own.Cache([own._Layer() for _ in range(self.layers)])  # noqa: SLF001
            cache = own.EncoderDecoderCache(self.cache.at(start + torch.arange(tokens.shape[1]), 0), cross)
            states = own.BaseModelOutput(last_hidden_state=encoded)
            made = self.model(encoder_outputs=states, decoder_input_ids=tokens, cache=cache, use_cache=True)
            return made.logits[:, -1]

    definition = own.model(**fields)
    methods = definition.methods
    kept = methods["text_decoder"].module
    encoder = Encoder(kept.model, kept.layers)
    (example,) = methods["encoder"].example_inputs[0]
    with torch.no_grad():
        states = encoder(example)
    calls = [(tokens, states, start) for tokens, _, start in methods["text_decoder"].example_inputs]
    module = Decoder(kept.model, kept.cache, kept.layers, None)
    decoder = replace(methods["text_decoder"], module=module, example_inputs=calls)
    changed = {"encoder": replace(methods["encoder"], module=encoder), "text_decoder": decoder}
    return replace(definition, methods=changed, sequences=())


def configuration(shape: str, layers: int, vocabulary: int) -> dict[str, Any]:
    """Fields of the network's configuration."""
    depths = {"t5": {"num_layers": layers}}.get(shape, {"encoder_layers": layers, "decoder_layers": layers})
    special = dict.fromkeys(("pad_token_id", "eos_token_id"), 1)
    start = {} if shape == "t5" else {"bos_token_id": 1, "decoder_start_token_id": 2, "begin_suppress_tokens": []}
    return {**SHAPES[shape][1], **depths, **special, **start, "vocab_size": vocabulary}


def measure_eager(
    shape: str, config: dict[str, Any], context: int, tokens: int, length: int
) -> list[tuple[float, float]]:
    """As `measure`, of the modules in PyTorch."""
    import torch
    from pteforge.tasks.sources.encoder_decoder import model

    torch.set_num_threads(1)
    fields = {"name": shape, "task": SHAPES[shape][0], "sequence": context, "config": config}
    forms = [(model(**fields), False), (projecting(**fields), False), (model(**fields), True)]
    ids = torch.randint(5, 100, (1, context // 2))
    found = []
    for definition, whole in forms:
        encoder, decoder = (definition.methods[name].module for name in ("encoder", "text_decoder"))
        (example,) = definition.methods["encoder"].example_inputs[0]
        sound = torch.randn(example.shape) if example.dim() == 3 else torch.randint(5, 100, (1, length))
        each: list[float] = []
        with torch.no_grad():
            began = time.process_time()
            encoded = None if whole else encoder(sound)
            before = time.process_time() - began
            for number in range(2 if whole else tokens):
                began = time.process_time()
                if whole:
                    net = encoder.model
                    net(**{net.main_input_name: sound}, decoder_input_ids=ids, use_cache=False)
                else:
                    decoder(ids[:, :1], encoded, torch.tensor([ids.shape[1] + number]))
                each.append(time.process_time() - began)
        found.append((before, median(each)))
    return found


def lower(folder: Path, shape: str, config: dict[str, Any], context: int) -> list[Path]:
    """Lowers all forms; returns their files."""
    named = {"huggingface": shape, "task": SHAPES[shape][0], "sequence": context, "config": config}
    projected = {"name": shape, **{name: named[name] for name in ("task", "sequence", "config")}}
    sources: list[Mapping[str, Any]] = [
        named,
        {"builder": "encoder_decoder:projecting", "kwargs": projected},
        {**named, "task": "feature-extraction", "batch": 1},
    ]
    models = {f"m{number}": {"source": source, "limits": {"timeout": "60m"}} for number, source in enumerate(sources)}
    export(write_zoo(folder, models, defaults={"recipes": [RECIPE]}), folder)
    return [folder / "out" / model / f"{RECIPE}.pte" for model in models]


def measure(files: list[Path], context: int, tokens: int, length: int) -> list[tuple[float, float]]:
    """Median seconds of each form: to encode an input, and for a token in the middle of the context."""
    import torch
    from executorch.runtime import Runtime
    from pteforge.formats.pte.reader import open_pte

    programs = [Runtime.get().load_program(file) for file in files]
    (taken, *_) = next(method for method in open_pte(files[0]).methods if method.name == "encoder").inputs
    sound = torch.randn(taken.shape) if len(taken.shape) == 3 else torch.randint(5, 100, (1, length))
    ids = torch.randint(5, 100, (1, context // 2))
    mask = [torch.ones_like(sound)] if sound.dtype is torch.int64 else []
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in files]

    def timed(method: Any, inputs: list[Any], times: list[float]) -> Any:
        began = time.perf_counter()
        made = method.execute(inputs)
        times.append(time.perf_counter() - began)
        return made

    *split, whole = programs
    encoders = [program.load_method("encoder") for program in split]
    decoders = [program.load_method("text_decoder") for program in split]
    forward = whole.load_method("forward")
    for number in range(tokens):
        for encoder, decoder, (before, each) in zip(encoders, decoders, seconds, strict=False):
            (encoded,) = timed(encoder, [sound], before)
            if number == 0:
                decoder.execute([ids, encoded, torch.tensor([0])])
            timed(decoder, [ids[:, :1], encoded, torch.tensor([ids.shape[1] + number])], each)
        timed(forward, [sound, *mask, ids], seconds[-1][1])
    return [(median(before or [0.0]), median(each)) for before, each in seconds]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--length", type=int, default=100, help="tokens of a text to encode")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=20, help="to generate")
    parser.add_argument("--eager", action="store_true", help="measure the modules in PyTorch, and lower nothing")
    arguments = parser.parse_args()
    print(f"{'':<42}{'encoder':>12}{'time per token':>18}{'ratio':>8}")
    for shape in arguments.shapes:
        config = configuration(shape, arguments.layers, arguments.vocabulary)
        sizes = arguments.context, arguments.tokens, arguments.length
        if arguments.eager:
            measured = measure_eager(shape, config, *sizes)
        else:
            with temporary_folder() as folder:
                measured = measure(lower(folder, shape, config, arguments.context), *sizes)
        for form, (before, each) in zip(FORMS, measured, strict=True):
            name, ratio = f"{shape}: {form}", each / measured[-1][1]
            print(f"{name:<42}{1000 * before:>9.2f} ms{1000 * each:>15.2f} ms{ratio:>8.3f}")


if __name__ == "__main__":
    main()
