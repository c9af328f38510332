"""Loading and running `.pte` files, plain and fat, on this machine's ExecuTorch runtime."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, Unpack

from ..errors import InputError, PteforgeError, first_line
from ..formats.media import required
from ..formats.nfat.container import V1, FatFile, is_fat, open_fat
from ..formats.nfat.contents import BACKEND_ID
from ..formats.pte.buckets import Bucket, choose_bucket, fit_bucket, read_buckets
from ..formats.pte.contents import Method, PteFile, TensorSpec, ValueSpec, shape_problem
from ..formats.pte.metadata import MetadataValue, read_metadata
from ..formats.pte.ptd import check_external_weights, may_have_external_weights
from ..formats.pte.reader import open_pte
from . import pipelines, selection
from .generation import Generated, GenerationOptions, generate
from .signature import call_mismatch, inputs_problem

_Item = TypeVar("_Item")

_CONTEXT = "get_max_context_len"  # constant method of a language model: how many tokens it can keep


def load(
    path: str | Path,
    *,
    recipe: str = "",
    prefer: Iterable[str] = (),
    exclude: Iterable[str] = (),
    data_files: Iterable[str | Path] = (),
) -> LoadedProgram:
    """Loads a `.pte` file into ExecuTorch's Python runtime.

    From a fat file, loads the first payload whose backends are registered and available, whose bytes are undamaged,
    whose methods load, and which passes its own check, if any.

    Args:
        path: the file, fat or plain; or the folder of a model that `pteforge export` made or `pteforge release fetch`
            has fetched; or ``hf://org/name/MODEL``, with ``@revision`` after the name, of a release on the Hugging Face
            Hub, which is downloaded.
        recipe: of a folder, which of its files.
        prefer: names of payloads to try first, in this order.
        exclude: names of payloads not to try.
        data_files: `.ptd` files with external weights; by default that of a folder's file.

    Raises:
        InputError: the folder has no file, or several and `recipe` names none; the file cannot be read, is damaged, or
            needs something that this machine lacks; a `.ptd` is missing or belongs to another file; there is no payload
            with a given name. As NoPayloadFits if no payload of a fat file can run.
        PteforgeError: the runtime rejects a plain file.
    """
    preference = selection.Preference(_as_tuple(prefer), _as_tuple(exclude))
    data_paths = tuple(map(Path, _as_tuple(data_files)))
    file = _from_hub(path) if isinstance(path, str) and path.startswith(_HUB) else Path(path)
    if file.is_dir():
        file = _file_in(file, recipe)
        data_paths = data_paths or tuple(filter(Path.is_file, [file.with_suffix(".ptd")]))
    pte = open_pte(file)
    return _load_fat(file, preference, data_paths) if is_fat(pte) else _load_plain(file, pte, preference, data_paths)


_HUB = "hf://"


def _from_hub(url: str) -> Path:
    """Downloads a model's folder of a release on the Hugging Face Hub, unless its cache has it."""
    hub = required("huggingface_hub", "hf")
    owner, _, rest = url.removeprefix(_HUB).partition("/")
    repo, _, folder = rest.partition("/")
    name, _, revision = repo.partition("@")
    if not (name and folder):
        raise InputError(f"{url} names no model: write {_HUB}org/name/MODEL")
    try:
        there = hub.snapshot_download(f"{owner}/{name}", revision=revision or None, allow_patterns=[f"{folder}/*"])
    except (OSError, ValueError) as error:  # the Hub's own errors are among these
        raise InputError(f"{url} cannot be downloaded: {first_line(error)}") from error
    if not (Path(there) / folder).is_dir():
        raise InputError(f"there is no {url}: {owner}/{name} has no such folder")
    return Path(there) / folder


def _file_in(folder: Path, recipe: str) -> Path:
    """The `.pte` file of a recipe in a model's folder, or its only one."""
    names = sorted(path.stem for path in folder.glob("*.pte") if not path.stem.endswith(".rejected"))
    if (recipe and recipe not in names) or (not recipe and len(names) != 1):
        there = f"it has {', '.join(names)}: name one (recipe=...)" if names else "it has none"
        wanted = f"the recipe {recipe!r}" if recipe else "its recipe"
        raise InputError(f"{folder} does not say which file by {wanted}: {there}")
    return folder / f"{recipe or names[0]}.pte"


def metadata(path: str | Path) -> dict[str, MetadataValue]:
    """The metadata of a `.pte` file, fat or plain, about its model, by key such as ``output.labels``.

    Loads nothing into ExecuTorch's runtime. Lists are tuples. InputError if the file cannot be read, or is damaged.
    """
    return read_metadata(Path(path))


@dataclass(frozen=True)
class TimedRun:
    """One run of a method."""

    outputs: list[Any]
    load_seconds: float  # to load the method: its delegates are made ready
    run_seconds: float  # to execute it once


@dataclass(frozen=True)
class LoadedProgram:
    """A program that is ready to run.

    Attributes:
        payload: name of the payload that runs; None for a plain file.
        report: a line for each payload that was tried: chosen, or why not; empty for a plain file.
        methods: names, in the file's order.
    """

    payload: str | None
    report: tuple[str, ...]
    methods: tuple[str, ...]
    _file: Path
    _programs: Mapping[str, Any] = field(repr=False)
    _signatures: Mapping[str, Method] = field(repr=False)
    _mismatches: Mapping[str, str] = field(repr=False)
    _advice: str = field(default="", repr=False)
    _buckets: Mapping[str, Sequence[Bucket]] = field(default_factory=dict, repr=False)
    _data: Path | None = field(default=None, repr=False)
    processors: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # those that are loaded

    @property
    def file(self) -> Path:
        return self._file

    @cached_property
    def metadata(self) -> dict[str, MetadataValue]:
        """What the file says about its model, as `pteforge.runtime.metadata` returns it."""
        return read_metadata(self._file)

    @property
    def signature(self) -> Method:
        """Inputs and outputs of `forward`; InputError if the file has no such method."""
        if pipelines.METHOD not in self._signatures:
            raise InputError(f"{self._file} has no method {pipelines.METHOD!r}; it has {', '.join(self.methods)}")
        return self._signatures[pipelines.METHOD]

    def generate(self, prompt: str = "", **options: Unpack[GenerationOptions]) -> Generated:
        """Generates text, in a process of its own; see `pteforge.runtime.generate`."""
        return generate(self._file, prompt, data=self._data, **options)

    def transcribe(self, sound: Any, **options: Unpack[GenerationOptions]) -> Generated:
        """Transcribes a sound: a path, or samples [samples] and their rate in hertz. Raises as `generate`."""
        return self.generate(**{**options, "audio": sound})

    def classify(self, item: Any, *, pair: str = "", top: int = 5) -> list[pipelines.Label]:
        """The likeliest classes of an input; of a model for tokens, the parts of a text that have a class.

        Inputs are prepared by the tokenizer or processor next to the file, or by the file's metadata. Longer texts are
        cut.

        Args:
            item: a text; an image, of Pillow or its path; or a sound, as `transcribe` takes it.
            pair: a second text, of a model for pairs.
            top: how many classes to return at most.

        Raises InputError if the file does not classify, or not such an input. As `run`.
        """
        return pipelines.classify(self, item, pair, top)

    def embed(self, items: Any) -> Any:
        """Embeddings [items, dimensions] of a list of texts, images or sounds, or of one; raises as `classify`."""
        return pipelines.embed(self, items if isinstance(items, list) else [items])

    def rank(self, query: str, texts: Iterable[str]) -> list[float]:
        """Scores from 0 to 1 of texts by how well they answer a query, of a reranker; raises as `classify`."""
        return [self.classify(query, pair=text, top=1)[0].score for text in texts]

    def choose_bucket(self, method: str, inputs: Sequence[Any]) -> str:
        """The name of a method's smallest bucket that takes inputs, padded or not; InputError without one."""
        if method not in self._buckets:
            raise InputError(f"{self._file} has no buckets of {method!r}")
        return choose_bucket(self._buckets[method], inputs).name

    def run(self, method: str, inputs: Sequence[Any] = ()) -> list[Any]:
        """Runs a method on tensors or NumPy arrays and numbers, in the order of its inputs.

        If the method has buckets, runs the smallest one that the inputs fit, pads smaller inputs, and cuts the outputs
        as the file describes. Returns outputs in the method's order; the next call does not change their tensors.

        Raises:
            InputError: there is no such method, or the inputs do not match its signature, or fit no bucket.
            PteforgeError: the runtime fails, or the payload's signature is not that of the fat file.
        """
        return self.timed_run(method, inputs).outputs

    def timed_run(self, method: str, inputs: Sequence[Any] = ()) -> TimedRun:
        """Runs a method as `run` does, and measures the time of its two parts; raises as `run`."""
        inputs = [_as_tensor(value) for value in inputs]
        if method in self._buckets:
            bucket, padded = fit_bucket(self._buckets[method], inputs)
            done = self.timed_run(bucket.name, padded)
            return replace(done, outputs=bucket.cut(inputs, done.outputs))
        if method not in self._programs:
            raise InputError(f"{self._file} has no method {method!r}; it has {', '.join(map(repr, self.methods))}")
        if method in self._mismatches:
            raise self._signature_error(method, self._mismatches[method])
        signature = self._signatures.get(method)
        if signature and (problem := inputs_problem(signature, inputs)):
            raise InputError(f"{self._file} cannot run {method!r}: {problem}")
        laid_out = signature.lay_out(inputs) if signature else inputs
        began = time.perf_counter()
        try:
            loaded = self._programs[method].load_method(method)
        except (RuntimeError, KeyError, MemoryError) as error:
            missing = selection.missing_operators(open_pte(self._file).operators)
            reason = f"{first_line(error)}{self._advice}" + (f"; {missing}" if missing else "")
            raise PteforgeError(f"the runtime cannot load {method!r} of {self._file}: {reason}") from error
        ready = time.perf_counter()
        try:
            outputs = list(loaded.execute(laid_out))
        except (RuntimeError, ValueError, TypeError, KeyError, MemoryError) as error:
            if problem := self._past_context(inputs):
                raise InputError(f"{self._file} cannot run {method!r}: {problem}") from error
            raise PteforgeError(f"the runtime cannot run {method!r} of {self._file}: {first_line(error)}") from error
        ended = time.perf_counter()
        if signature and self.payload and (problem := _output_problem(signature.outputs, outputs)):
            raise self._signature_error(method, problem)
        return TimedRun(outputs, ready - began, ended - ready)

    def _past_context(self, inputs: Sequence[Any]) -> str:
        """The problem if the file is a language model whose tokens [1, tokens] from their start [1] on do not fit.

        Between these two inputs, a decoder takes the encoder's output.
        """
        ranks = [len(getattr(value, "shape", ())) for value in inputs]
        if _CONTEXT not in self._programs or ranks not in ([2, 1], [2, 3, 1]):
            return ""
        (context,) = self._programs[_CONTEXT].load_method(_CONTEXT).execute([])
        tokens, start = inputs[0].shape[1], int(inputs[-1][0])
        if 0 <= start <= context - tokens:
            return ""
        return f"{tokens} tokens from position {start} on do not fit into its context of {context} tokens ({_CONTEXT})"

    def _signature_error(self, method: str, problem: str) -> PteforgeError:
        return PteforgeError(f"payload {self.payload} of {self._file} does not fit the file: of {method!r}, {problem}")


def _output_problem(specs: Sequence[ValueSpec], outputs: Sequence[Any]) -> str | None:
    for position, (spec, output) in enumerate(zip(specs, outputs, strict=False)):
        if not isinstance(spec, TensorSpec) or not hasattr(output, "shape"):
            continue
        if problem := shape_problem(spec, output.shape, "gives"):
            return f"output {position} {problem}"
    return None


def _as_tuple(items: Iterable[_Item]) -> tuple[_Item, ...]:
    if isinstance(items, str | Path):
        raise TypeError(f"{items!r} has to be in a list, also if it is the only one")
    return tuple(items)


def _load_plain(
    file: Path, pte: PteFile, preference: selection.Preference, data_files: Sequence[Path]
) -> LoadedProgram:
    if preference:
        raise InputError(f"{file} is not a fat file: there are no payloads to prefer or exclude")
    if len(data_files) > 1:
        raise InputError(f"{file} is not a fat file: ExecuTorch's Python runtime takes one .ptd file with it")
    if BACKEND_ID in pte.backends:
        raise InputError(
            f"{file} cannot run here: it delegates parts of methods to {BACKEND_ID}, each with its own container, "
            "and only the C++ library runs such files"
        )
    for backend in pte.backends:
        if problem := selection.backend_problem(backend):
            raise InputError(f"{file} cannot run here: {problem}")
    data = data_files[0] if data_files else None
    check_external_weights(file, pte, data)
    names = _method_names(pte.methods)
    signatures = {method.name: method for method in pte.methods}
    buckets = read_buckets(read_metadata(file, pte))
    static = {bucket.name for sizes in buckets.values() for bucket in sizes}  # which have no state
    programs = selection.load_programs(pte.methods, lambda: _load_program(file, data), stateless=static)
    return LoadedProgram(None, (), names, file, programs, signatures, {}, _advice(file, pte, data), buckets, data)


def _advice(file: Path, pte: PteFile, data: Path | None) -> str:
    """Advice for a method that does not load, perhaps for external weights whose keys only the backend knows."""
    if not may_have_external_weights(file, pte):
        return ""
    if data:
        return f"; is {data} the .ptd that was made with it?"
    return f"; {', '.join(pte.backends)} may look for weights in a .ptd file, and none was given"


def _load_fat(file: Path, preference: selection.Preference, data_files: Sequence[Path]) -> LoadedProgram:
    fat = open_fat(file, data_files)
    delegated = [method for method in fat.program.methods if _is_delegated(method)]
    others = [method for method in fat.program.methods if not _is_delegated(method)]
    with _shared_data(fat) as named_data:
        choice = selection.select(file, fat.container, _method_names(delegated), preference, named_data)
    chosen = {method.name: method for method in choice.pte.methods}
    mismatches = {method.name: call_mismatch(method, chosen[method.name]) for method in delegated}
    programs = dict(choice.programs)
    if others:  # constant methods, which payloads do not have
        programs |= dict.fromkeys(_method_names(others), _load_program(file))
    return LoadedProgram(
        choice.name,
        choice.report,
        _method_names(fat.program.methods),
        file,
        programs,
        {method.name: method for method in delegated},
        {name: problem for name, problem in mismatches.items() if problem},
        _buckets=read_buckets(read_metadata(file)),
        _data=next(iter(data_files), None),
    )


def _is_delegated(method: Method) -> bool:
    return any(delegate.id == BACKEND_ID for delegate in method.delegates)


def _method_names(methods: Iterable[Method]) -> tuple[str, ...]:
    return tuple(method.name for method in methods)


def _load_program(file: Path, data_file: Path | None = None) -> Any:
    try:
        return selection.load_program(file, data_file)
    except RuntimeError as error:
        raise PteforgeError(f"the runtime cannot load {file}: {first_line(error)}") from error


@contextmanager
def _shared_data(fat: FatFile) -> Iterator[Path | None]:
    """A `.ptd` with named data that version 1 payloads share: Python's runtime takes none from the fat program."""
    if fat.container.version != V1 or not fat.container.named_data:
        yield None
        return
    with selection.scratch_folder() as folder:
        path = folder / "named.ptd"
        path.write_bytes(_ptd(fat.container.named_data))
        yield path


def _ptd(named: Mapping[Any, Any]) -> bytes:
    """Writes named data as a `.ptd`, with the private serializers of executorch 1.5.1."""
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload  # noqa: PLC0415 - needed rarely
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer  # noqa: PLC0415 - as above

    entries = {key: DataEntry(index, 16, None) for index, key in enumerate(named)}
    payload = DataPayload([bytes(content) for content in named.values()], entries)
    return bytes(FlatTensorSerializer().serialize(payload))


def _as_tensor(value: Any) -> Any:
    """A NumPy array as a tensor; other values as they are."""
    if type(value).__module__ != "numpy":
        return value
    import torch  # noqa: PLC0415 - takes a second, and ExecuTorch's runtime has imported it

    return torch.tensor(value)
