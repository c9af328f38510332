"""Runs a file by a runner of ExecuTorch or by a loop, in a process that `generation` starts.

ExecuTorch's runners load no fat files or encoder-decoders, and only BPE and SentencePiece tokenizers. They may also
read a prompt as other tokens than transformers, and continue another text. In all of these cases, the loop generates.
"""

from __future__ import annotations

import codecs
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from ..errors import InputError, PteforgeError, first_line
from ..formats.media import generated_tokens
from ..formats.nfat.container import is_fat
from ..formats.pte.contents import TensorSpec
from ..formats.pte.reader import open_pte
from .generation import AUDIO, VISION, Generated, GenerationRequest, constants_of, encodes_sound, kind_of
from .host import load
from .prompts import Part, from_folder, multimodal_prompt, sound_features, text_prompt
from .selection import missing_operators


def answer(descriptor: int) -> None:
    """Receives a request, and sends each part of the text in a tuple, then the result, an error, or an error's text."""
    with Connection(descriptor) as connection:
        try:
            connection.send(_Generation(connection.recv(), lambda text: connection.send((text,))).run())
        except PteforgeError as error:
            connection.send(error)
        except (RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:
            connection.send(f"{type(error).__name__}: {first_line(error)}")


class _Text:
    """The text so far, whose complete characters are passed on, and the times of its tokens."""

    def __init__(self, tokenizer: Any, send: Callable[[str], None], *, special: bool = False) -> None:
        self.tokens: list[int] = []
        self.count = 0
        self.parts: list[str] = []
        self._decode: Callable[[list[int]], str] = lambda tokens: tokenizer.decode(
            tokens, skip_special_tokens=not special
        )
        self._send = send
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._context = self._shown = 0  # numbers of tokens that are not decoded again, and that are passed on
        self.begin()

    def begin(self) -> None:
        """Starts the time of loading, and then of the prompt."""
        self.began = self.first = self.last = time.perf_counter()

    def tick(self) -> None:
        self.count += 1
        self.last = time.perf_counter()
        if self.count == 1:
            self.first = self.last

    def add_bytes(self, content: bytes) -> None:
        self._put(self._bytes.decode(content))

    def add_token(self, token: int) -> None:
        self.tokens.append(token)
        self._show(self._decode(self.tokens[self._context :]), whole=False)

    def add_mark(self, mark: str) -> None:
        """Adds text of no token, such as a time."""
        self.end()
        self._put(mark)

    def end(self) -> str:
        """Passes on the rest; returns the whole text."""
        self._put(self._bytes.decode(b"", final=True))
        self._show(self._decode(self.tokens[self._context :]), whole=True)
        return "".join(self.parts)

    def _show(self, text: str, *, whole: bool) -> None:
        """Passes on the new part of the text; its last character may be incomplete."""
        new = text[len(self._decode(self.tokens[self._context : self._shown])) :]
        if new and (whole or not text.endswith("\N{REPLACEMENT CHARACTER}")):
            self._put(new)
            self._context, self._shown = self._shown, len(self.tokens)

    def _put(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self._send(text)


class _Generation:
    """A file, its tokenizer, and the text that is generated from a request."""

    def __init__(self, request: GenerationRequest, send: Callable[[str], None]) -> None:
        self.request = request
        self.pte = open_pte(request.file)
        self.methods = {method.name: method for method in self.pte.methods}
        self.constants = constants_of(self.pte)
        self.tokenizer = from_folder("AutoTokenizer", request.folder)
        self.ends = {*self.numbers("get_eos_ids")} or {self.tokenizer.eos_token_id}
        self.text = _Text(self.tokenizer, send, special=request.special)
        self.load_seconds = 0.0

    def numbers(self, name: str) -> tuple[int, ...]:
        """The results of a constant method; none if there is no such method."""
        value = self.constants.get(name, ())
        return value if isinstance(value, tuple) else (value,)

    def run(self) -> Generated:
        kind = kind_of(self.request.file, self.pte)
        if kind == "encoder-decoder":
            return self._transduce()
        if kind == "CTC":
            return self._recognize()
        prompt = ""
        if kind == "multimodal":
            names = {VISION: "image_token_id", AUDIO: "audio_token_id"}
            special = {method: self.numbers(name)[0] for method, name in names.items() if method in self.methods}
            counts = {method: _size(self.methods[method].outputs[0]) for method in special}
            parts = multimodal_prompt(self.request, self.methods, special, counts)
        else:
            prompt, tokens = text_prompt(self.request, self.tokenizer)
            parts = [Part("", tokens, len(tokens))]
        most = self._most(sum(part.tokens for part in parts))
        if not is_fat(self.pte) and (reading := _reading(self.request, prompt, parts)):
            return self._by_runner(prompt, parts, reading, most)
        return self._by_loop(parts, most)

    def _most(self, prompt: int) -> int:
        """How many tokens can be generated; raises InputError if the prompt leaves none."""
        (context,) = self.numbers("get_max_context_len") or self.numbers("get_max_seq_len")
        if not 0 < prompt < context:
            raise InputError(
                f"the prompt has {prompt} tokens, and {self.request.file} takes 1 to {context - 1} (its context of "
                f"{context} tokens, get_max_context_len, is for the prompt and what is generated)"
            )
        return min(self.request.max_new_tokens or context, context - prompt)

    def _done(self, runner: str, prompt: int) -> Generated:
        text = self.text
        whole, seconds = text.end(), text.first - text.began - self.load_seconds
        return Generated(whole, runner, prompt, text.count, self.load_seconds, seconds, text.last - text.first)

    def _by_runner(self, prompt: str, parts: Sequence[Part], reading: tuple[str, int], most: int) -> Generated:
        """Generates with the runner of ExecuTorch that takes the path of a tokenizer and the number of BOS tokens."""
        self._prepare()
        from executorch.extension.llm import runner as llm  # noqa: PLC0415 - takes seconds

        kind = llm.TextLLMRunner if prompt else llm.MultimodalRunner
        make = {VISION: llm.make_image_input, AUDIO: llm.make_audio_input, "token_embedding": llm.make_token_input}
        ends = {*self.tokenizer.convert_ids_to_tokens([*self.ends])}
        hidden = set() if self.request.special else ends | _special_tokens(self.tokenizer)
        stats: list[Any] = []
        path, bos = reading

        def add_piece(piece: str) -> None:
            self.text.tick()
            if piece not in hidden:
                self.text.add_bytes(piece.encode("utf-8", "surrogateescape"))
            if piece in ends and self.text.count == 1:
                raise _EndedError  # the runners look for the end from the second token on

        self.text.begin()
        runner = kind(str(self.request.file), path, str(self.request.data) if self.request.data else None)
        seconds = time.perf_counter() - self.text.began
        temperature = self.request.temperature
        config = llm.GenerationConfig(echo=False, max_new_tokens=most, temperature=temperature, num_bos=bos)
        inputs = prompt or [make[part.method](part.values) for part in parts]
        with _incomplete_characters(), suppress(_EndedError):
            runner.generate(inputs, config, add_piece, stats.append)
        self.load_seconds = seconds + sum(stat.model_load_end_ms - stat.model_load_start_ms for stat in stats) / 1000
        return self._done(kind.__name__, sum(part.tokens for part in parts))

    def _prepare(self) -> None:
        """Loads kernels; raises InputError if this runtime lacks a backend or a kernel of the file."""
        for module in ("torch", "executorch.kernels.quantized", *self.pte.kernel_modules):
            importlib.import_module(module)
        from executorch.extension.pybindings import _C  # noqa: PLC0415 - takes seconds

        names = _C._get_registered_backend_names()  # noqa: SLF001 - `portable_lib` also has it, but imports all of exir
        missing = [backend for backend in self.pte.backends if backend not in names]
        problem = f"this runtime has no {', '.join(missing)}" if missing else missing_operators(self.pte.operators)
        if problem:
            raise InputError(f"{self.request.file} cannot run here: {problem}")

    def _by_loop(self, parts: Sequence[Part], most: int) -> Generated:
        call = self._loaded()
        logits, position = None, 0
        for part in parts:
            logits = self._step(call, part.method, part.values, position)
            position += part.tokens
        for token in self._loop(
            lambda token, at: self._step(call, parts[-1].method, [token], at), logits, position, most
        ):
            self.text.add_token(token)
        return self._done("pteforge", position)

    def _loaded(self) -> Callable[..., Any]:
        """A function that calls a method and returns its first output."""
        importlib.import_module("executorch.runtime")  # takes seconds that are not the file's
        self.text.begin()
        program = load(self.request.file, data_files=[self.request.data] if self.request.data else [])
        self.load_seconds = time.perf_counter() - self.text.began

        def call(method: str, *inputs: Any) -> Any:
            done = program.timed_run(method, inputs)
            self.load_seconds += done.load_seconds if self.text.count == 0 else 0
            return done.outputs[0]

        return call

    def _step(self, call: Callable[..., Any], method: str, values: Any, start: int) -> Any:
        """Logits [vocabulary] after tokens, or after the inputs of an encoder."""
        import torch  # noqa: PLC0415 - takes seconds

        if method:
            inputs = torch.tensor([values]) if isinstance(values, list) else values
            return _last(call("text_decoder", call(method, inputs), torch.tensor([start])))
        (longest,) = self.numbers("get_max_seq_len")
        name = "forward" if "forward" in self.methods else "prefill"  # which takes one token, too, as for the runner
        for at in range(0, len(values), longest):
            logits = call(name, torch.tensor([values[at : at + longest]]), torch.tensor([start + at]))
        return _last(logits)

    def _loop(
        self,
        step: Callable[[int, int], Any],
        logits: Any,
        position: int,
        most: int,
        adjust: Callable[[Sequence[int], Any], Any] = lambda _, logits: logits,
    ) -> Iterator[int]:
        """Yields tokens after logits [vocabulary], which `adjust` may change with the tokens so far.

        The one that ends the text is among them only where special tokens are shown.
        """
        import torch  # noqa: PLC0415 - takes seconds

        def choose(before: Sequence[int], logits: Any) -> int:
            scores = adjust(before, logits.float())
            if self.request.temperature:
                return int(torch.multinomial((scores / self.request.temperature).softmax(-1), 1))
            return int(scores.argmax())

        for token in generated_tokens(logits, step, position, most, choose):
            self.text.tick()
            if token not in self.ends or self.request.special:
                yield token
            if token in self.ends:
                return

    def _recognize(self) -> Generated:
        """The text of the likeliest token of each frame: the tokenizer drops what repeats, and blanks (CTC)."""
        features = sound_features(self.request.audio, self.request.folder)
        tokens = self._loaded()("forward", features)[0].argmax(-1).tolist()
        self.text.tick()
        self.text.add_mark(self.tokenizer.decode(tokens, skip_special_tokens=not self.request.special))
        return self._done("pteforge", len(tokens))

    def _transduce(self) -> Generated:
        """Generates with an encoder-decoder, with the prompt and the rules for tokens of `generate` of transformers."""
        import torch  # noqa: PLC0415 - takes seconds

        silent = self.numbers("no_timestamps_token_id")
        if encodes_sound(self.pte):
            inputs = sound_features(self.request.audio, self.request.folder, longer=bool(silent))
        else:
            inputs = torch.tensor([text_prompt(self.request, self.tokenizer)[1]])
        window = _window(self.methods["encoder"].inputs[0]) or inputs.shape[-1]
        timed = self.request.timestamps or inputs.shape[-1] > window
        if timed and not silent:
            raise InputError(f"{self.request.file} has no timestamps (no_timestamps_token_id)")
        call = self._loaded()
        encoded: Any = None

        def step(tokens: Sequence[int], start: int) -> Any:
            return _last(call("text_decoder", torch.tensor([tokens]), encoded, torch.tensor([start])))

        def adjust(tokens: Sequence[int], logits: Any) -> Any:
            return rules(torch.tensor([[*prompt, *tokens]]), logits[None])[0]

        prompt: list[int] = []
        begin = 0
        while begin < inputs.shape[-1]:
            part = inputs[..., begin : begin + window]
            encoded = call("encoder", torch.nn.functional.pad(part, (0, window - part.shape[-1])))
            if not prompt:
                prompt, forced = self._decoder_prompt(lambda tokens: step(tokens, 0), timed=timed)
                most, rules = self._most(len(prompt)), self._rules(prompt, forced, timed=timed)
            tokens = self._loop(lambda token, at: step([token], at), step(prompt, 0), len(prompt), most, adjust)
            if timed:
                frames_per_mark = window / self.numbers("max_hidden_seq_length")[0]
                begin += self._add_segments([*tokens], silent[0] + 1, begin, part.shape[-1], frames_per_mark)
            else:
                begin += window
                for token in tokens:
                    self.text.add_token(token)
        return self._done("pteforge", len(prompt))

    def _add_segments(self, tokens: list[int], first: int, begin: int, frames: int, per_mark: float) -> int:
        """Adds what a window says that begins at a frame; returns by how many the next one begins later.

        Marks of time, tokens from `first` on, stand before and after each segment. A last segment without its end is
        left to the next window, as in `generate` of transformers (generation_whisper.py, 5.23).
        """
        marks = [token >= first for token in tokens]
        between = [at for at in range(1, len(tokens)) if marks[at - 1] and marks[at]]
        if between and marks[-2:] != [False, True]:
            tokens = tokens[: between[-1]]
            frames = round((tokens[-1] - first) * per_mark) or frames
        for token in tokens:
            if token < first:
                self.text.add_token(token)
            elif self.request.timestamps:
                self.text.add_mark(f"<|{(begin / per_mark + token - first) * _TIME_STEP:.2f}|>")
        return frames

    def _decoder_prompt(self, logits_after: Callable[[list[int]], Any], *, timed: bool) -> tuple[list[int], int | None]:
        """The decoder's first tokens, and the one to generate first, if any; InputError for an unknown language."""
        start, silent = self.numbers("decoder_start_token_id"), self.numbers("no_timestamps_token_id")
        forced, settings, language = self.numbers("forced_bos_token_id"), self._settings(), self.request.language
        languages = getattr(settings, "lang_to_id", None) or {}
        prompt = [*start]
        if language:
            tokens = {**self.tokenizer.get_vocab(), **languages}
            names = [name for name in (f"<|{language}|>", language, f"__{language}__") if name in tokens]
            if not names or not (languages or forced):
                known = ", ".join(sorted(name.strip("<|>") for name in languages)) or "none"
                raise InputError(f"{self.request.file} does not know the language {language!r}: it knows {known}")
            if not languages:
                return prompt, tokens[names[0]]
            prompt.append(languages[names[0]])
        elif languages:
            scores = logits_after(prompt)
            prompt.append(max(languages.values(), key=lambda token: float(scores[token])))
        if languages:
            prompt.append((getattr(settings, "task_to_id", None) or {})["transcribe"])
        if silent and not timed:
            prompt.append(silent[0])
        return prompt, forced[0] if forced else None

    def _settings(self) -> Any:
        from transformers import GenerationConfig  # noqa: PLC0415 - takes seconds

        with suppress(OSError):
            return GenerationConfig.from_pretrained(self.request.folder, local_files_only=True)
        return GenerationConfig()

    def _rules(self, prompt: Sequence[int], forced: int | None, *, timed: bool) -> Any:
        """The processors of transformers for the logits of a decoder."""
        from transformers.generation import logits_process as process  # noqa: PLC0415 - takes seconds

        rules = process.LogitsProcessorList()
        first = len(prompt) + (forced is not None and len(prompt) == 1)
        if begin := self.numbers("begin_suppress_tokens"):
            rules.append(process.SuppressTokensAtBeginLogitsProcessor([*begin], first))
        if forced is not None:
            rules.append(process.ForcedBOSTokenLogitsProcessor(forced))
        if timed:
            settings = self._settings()
            settings.no_timestamps_token_id = self.numbers("no_timestamps_token_id")[0]
            rules.append(process.WhisperTimeStampLogitsProcessor(settings, begin_index=len(prompt)))
        return rules


_TIME_STEP = 0.02  # seconds, of Whisper


class _EndedError(Exception):
    """The model has ended its text."""


def _last(logits: Any) -> Any:
    """Logits [vocabulary] after the last token, of [1, vocabulary] or [1, tokens, vocabulary]."""
    return logits.reshape(-1, logits.shape[-1])[-1]


def _special_tokens(tokenizer: Any) -> set[str]:
    """What `decode` of transformers leaves out with `skip_special_tokens`."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return added | {*tokenizer.all_special_tokens}


def _window(spec: Any) -> int:
    """Frames that an encoder of features takes, [1, bins, frames]; 0 if it takes inputs of several lengths."""
    fixed = isinstance(spec, TensorSpec) and len(spec.shape) == 3 and not spec.sizes
    return int(spec.shape[-1]) if fixed else 0


def _size(spec: Any) -> int:
    """Rows that an encoder returns, [1, rows, columns]."""
    return int(spec.shape[1]) if isinstance(spec, TensorSpec) and len(spec.shape) == 3 else 0


def _reading(request: GenerationRequest, prompt: str, parts: Sequence[Part]) -> tuple[str, int] | None:
    """ExecuTorch's tokenizer, and with how many BOS tokens it reads the prompt as the parts; None if it does not."""
    import pytorch_tokenizers  # noqa: PLC0415 - only a process that generates needs it

    if (request.folder / "tokenizer.json").is_file():
        path, tokenizer = request.folder, pytorch_tokenizers.CppHFTokenizer()
    else:
        path, tokenizer = request.folder / "tokenizer.model", pytorch_tokenizers.CppSPTokenizer()
    try:
        tokenizer.load(str(path))
        if not prompt or tokenizer.encode(prompt, 0, 0) == parts[0].values:
            return str(path), 0
        return (str(path), 1) if tokenizer.encode(prompt, 1, 0) == parts[0].values else None
    except (RuntimeError, ValueError):
        return None


@contextmanager
def _incomplete_characters() -> Iterator[None]:
    """Makes the runners pass on tokens that are parts of characters, as surrogates.

    Their bindings decode single tokens strictly, by pybind11, and would raise UnicodeDecodeError (executorch 1.5.1).
    """
    codecs.register_error("strict", codecs.lookup_error("surrogateescape"))
    try:
        yield
    finally:
        codecs.register_error("strict", codecs.strict_errors)
