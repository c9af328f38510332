"""Generates text with `.pte` files: language models, encoder-decoders, and models that also take images or sounds.

Each runs in a process of its own: a crash of ExecuTorch's runtime does not end a notebook, and the output of its
runners does not mix with the text.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypedDict, Unpack

from ..errors import InputError, PteforgeError, runtime_reasons
from ..formats.media import TOKENIZERS
from ..formats.pte.contents import PteFile, ScalarSpec, TensorSpec
from ..formats.pte.metadata import read_metadata
from ..formats.pte.reader import open_pte

Kind = Literal["language model", "encoder-decoder", "multimodal", "CTC"]

VISION, AUDIO = "vision_encoder", "audio_encoder"


class GenerationOptions(TypedDict, total=False):
    """Options of `generate`.

    Attributes:
        images: paths, or images of Pillow.
        audio: a path, or samples [samples] and their rate in hertz.
        max_new_tokens: by default until the model ends its text, or the context is full.
        temperature: from 0, the default, which always takes the likeliest token, to 1.
        chat: put the prompt into the chat template, as a user's message.
        language: of speech, or to translate to, as the tokenizer names it; by default the model decides.
        timestamps: of speech.
        special: show special tokens, which are left out by default, as by ``skip_special_tokens`` of transformers.
        tokenizer: folder of the tokenizer and of processors' settings; by default that of the file.
    """

    images: Sequence[Any]
    audio: Any
    max_new_tokens: int | None
    temperature: float
    chat: bool
    language: str
    timestamps: bool
    special: bool
    tokenizer: str | Path | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A file, its `.ptd` file if it has one, a prompt, and the `GenerationOptions`."""

    file: Path
    data: Path | None
    prompt: str
    images: Sequence[Any] = ()
    audio: Any = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    chat: bool = False
    language: str = ""
    timestamps: bool = False
    special: bool = False
    tokenizer: str | Path | None = None

    @property
    def folder(self) -> Path:
        return Path(self.tokenizer or self.file.parent)


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that a file has generated.

    Attributes:
        runner: ``TextLLMRunner`` or ``MultimodalRunner`` of ExecuTorch, or ``pteforge``.
        prompt_tokens: including those of images and sounds; of an encoder-decoder, those of the decoder's prompt.
        generated_tokens: including the one that ends the text.
        load_seconds: until the methods of the file are loaded.
        prompt_seconds: from then on to the first token.
        generation_seconds: from then on to the last one.
    """

    text: str
    runner: str
    prompt_tokens: int
    generated_tokens: int
    load_seconds: float
    prompt_seconds: float
    generation_seconds: float

    def __str__(self) -> str:
        return self.text

    @property
    def prompt_rate(self) -> float:
        """Tokens per second."""
        return self.prompt_tokens / max(self.prompt_seconds, 1e-6)

    @property
    def generation_rate(self) -> float:
        """Tokens per second, without the first one, which the prompt's time contains."""
        return max(self.generated_tokens - 1, 0) / max(self.generation_seconds, 1e-6)


def constants_of(pte: PteFile) -> dict[str, Any]:
    """The result of each constant method of a file, by name: a number or a text, or a tuple of several."""
    constants: dict[str, Any] = {}
    for method in pte.methods:
        values = tuple(spec.value for spec in method.outputs if isinstance(spec, ScalarSpec))
        if method.constant and values:
            constants[method.name] = values[0] if len(values) == 1 else values
    return constants


def kind_of(file: Path, pte: PteFile) -> Kind:
    """Tells by its methods how a file generates text; raises InputError if it does not."""
    names = {method.name for method in pte.methods if not method.constant}
    if {"token_embedding", "text_decoder"} <= names:
        return "multimodal"
    if {"encoder", "text_decoder"} <= names:
        return "encoder-decoder"
    if {"forward", "prefill"} & names and "get_max_seq_len" in constants_of(pte):
        return "language model"
    described = read_metadata(file, pte)
    if "forward" in names and "audio.sampling_rate" in described and "tokenizer.vocab_size" in described:
        return "CTC"
    raise InputError(
        f"{file} generates no text: it has {', '.join(sorted(names)) or 'no methods'}; a language model has `forward` "
        "and `get_max_seq_len`, others have `text_decoder` with `encoder` or `token_embedding`"
    )


def generate(
    file: str | Path,
    prompt: str = "",
    *,
    data: Path | None = None,
    stream: Callable[[str], None] | None = None,
    **options: Unpack[GenerationOptions],
) -> Generated:
    """Generates text with a file. Passes each part of it to `stream` as soon as it is complete.

    Args:
        file: the `.pte` file, fat or plain.
        prompt: a text to continue, to translate, or to answer; empty to transcribe a sound.
        data: the `.ptd` file with its weights, if they are not in it.
        stream: called with each part of the text.
        options: see `GenerationOptions`.

    Raises:
        InputError: the file cannot be read, generates no text, or not from these inputs; there is no tokenizer; the
            prompt does not fit into the context; a package is missing.
        PteforgeError: ExecuTorch's runtime fails or crashes.
    """
    request = GenerationRequest(Path(file), data, prompt, **options)
    _check(request)
    ours, theirs = Pipe()
    program = (
        f"import sys; sys.path[:] = {[folder for folder in sys.path if isinstance(folder, str)]!r}; "
        f"from {__package__}.runners import answer; answer({theirs.fileno()})"
    )
    with ours, TemporaryFile() as log:
        command, far_end = [sys.executable, "-c", program], theirs.fileno()
        process = subprocess.Popen(  # noqa: S603 - this Python, and a program of our own
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[far_end]
        )
        theirs.close()
        try:
            ours.send(request)
            while isinstance(answer := ours.recv(), tuple):  # a part of the text; then the result or an error
                if stream:
                    stream(*answer)
        except (EOFError, OSError):
            answer = None
        except BaseException:  # an interruption, or an error of `stream`
            process.kill()
            raise
        finally:
            code = process.wait()
        log.seek(0)
        if isinstance(answer, Generated):
            return answer
        if isinstance(answer, PteforgeError):
            raise answer
        output = log.read().decode(errors="replace")
        reasons = "; ".join(runtime_reasons(output))
    if answer is not None:
        raise PteforgeError(f"ExecuTorch cannot generate text with {request.file}: {reasons or answer}")
    ended = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}"
    reason = reasons or next(reversed(output.split("\n")[:-1]), "")
    raise PteforgeError(f"the process that ran {request.file} {ended}" + (f": {reason}" if reason else ""))


def _check(request: GenerationRequest) -> None:
    """Raises InputError for problems that show before anything is loaded."""
    file, most = request.file, request.max_new_tokens
    pte = open_pte(file)
    kind, names = kind_of(file, pte), {method.name for method in pte.methods}
    transduces, sound = kind == "encoder-decoder", request.audio is not None
    transcribes = (transduces and encodes_sound(pte)) or kind == "CTC"
    paths = [path for path in (*request.images, request.audio) if isinstance(path, str | Path)]
    missing = next((path for path in paths if not Path(path).is_file()), "")
    for wrong, problem in (
        (request.images and VISION not in names, f"{file} takes no images: it has no method {VISION}"),
        (sound and not transcribes and AUDIO not in names, f"{file} takes no sound: it has no encoder of sounds"),
        (missing, f"there is no file {missing}"),
        (transcribes and (not sound or request.prompt), f"{file} transcribes a sound: give it one, and no prompt"),
        (not (request.prompt or sound or request.images), "there is nothing to generate from: give a prompt"),
        (
            not transduces and (request.language or request.timestamps),
            f"{file} is no encoder-decoder: only those take a language or timestamps",
        ),
        (most is not None and most < 1, f"max_new_tokens is {most}; it has to be 1 or more"),
        (not 0 <= request.temperature <= 1, f"the temperature is {request.temperature}; it has to be from 0 to 1"),
        (
            not any((request.folder / name).is_file() for name in TOKENIZERS),
            f"there is no tokenizer in {request.folder}, such as {TOKENIZERS[0]}: name its folder (--tokenizer)",
        ),
    ):
        if wrong:
            raise InputError(problem)


def encodes_sound(pte: PteFile) -> bool:
    """Whether the encoder of an encoder-decoder takes features or samples rather than tokens."""
    specs = [spec for method in pte.methods if method.name == "encoder" for spec in method.inputs]
    return any(isinstance(spec, TensorSpec) and spec.dtype.startswith(("float", "bfloat")) for spec in specs)
