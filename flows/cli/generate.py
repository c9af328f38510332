"""`pteforge generate`: text from language models, encoder-decoders, and models that take images or sounds, too."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from .options import AS_JSON, argument, flag, option
from .terminal import print_json
from .weights import check_found, data_files


def generate_text(  # noqa: PLR0913 - one parameter per option
    file: Annotated[Path, argument("A .pte file that generates text.")],
    prompt: Annotated[str, typer.Argument(help="The text to continue, translate, or answer.", show_default=False)] = "",
    *,
    image: Annotated[list[Path] | None, option("An image for the prompt; may be repeated.", "FILE", False)] = None,
    audio: Annotated[Path | None, option("A sound to transcribe, or for the prompt.", "FILE", False)] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to generate at most.", show_default="until the context is full")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=1, help="0 always takes the likeliest token; 1 draws as the model predicts.")
    ] = 0.0,
    tokenizer: Annotated[
        Path | None, option("Where the tokenizer and the settings of processors are.", "DIR", "next to the file")
    ] = None,
    chat: Annotated[bool, flag("--chat", "Put the prompt into the tokenizer's chat template.")] = False,
    language: Annotated[
        str, option("Of the sound, or to translate to, as the tokenizer names it.", "NAME", "the model decides")
    ] = "",
    timestamps: Annotated[bool, flag("--timestamps", "Print when each part of the sound is said.")] = False,
    special: Annotated[bool, flag("--special", "Print special tokens, too, such as those that end the text.")] = False,
    data: Annotated[Path | None, option("External weights.", "FILE.ptd", "the .ptd next to the file")] = None,
    as_json: AS_JSON = False,
    quiet: Annotated[bool, flag("--quiet", "Print the text only.", "-q")] = False,
) -> None:
    """Generate text with a .pte file, and print it as it comes; then say on standard error how fast that was.

    A language model continues a prompt, an encoder-decoder translates it or transcribes a sound, and a multimodal model
    answers with the images or the sound in view.
    """
    from ...runtime.generation import generate

    if not file.is_file():
        raise InputError(f"there is no file {file}")
    weights = data_files(file, [data] if data else None)
    check_found(file, () if data else weights)
    generated = generate(
        file,
        prompt,
        data=next(iter(weights), None),
        stream=None if as_json else lambda text: typer.echo(text, nl=False),
        images=image or (),
        audio=audio,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        chat=chat,
        language=language,
        timestamps=timestamps,
        special=special,
        tokenizer=tokenizer,
    )
    rates = {"prompt": generated.prompt_rate, "generation": generated.generation_rate}
    if as_json:
        print_json({**asdict(generated), "tokens_per_second": rates})
        return
    typer.echo()
    if not quiet:
        typer.echo(
            f"prompt: {generated.prompt_tokens} tokens, {rates['prompt']:.1f} per second; "
            f"generated: {generated.generated_tokens} tokens, {rates['generation']:.1f} per second; "
            f"first token after {generated.prompt_seconds:.3f} s, loaded in {generated.load_seconds:.3f} s, "
            f"by {generated.runner}",
            err=True,
        )
