"""Loading and running a `.pte` file. Of a fat one, the payload that the C++ library would choose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..artifacts.nfat.data_file import check_data_file, may_keep_outside
from ..artifacts.nfat.fat_file import BACKEND_ID, FatFile, is_fat, open_fat
from ..artifacts.nfat.v1 import VERSION as V1
from ..artifacts.pte.contents import Method, PteFile, TensorSpec, ValueSpec
from ..artifacts.pte.reader import open_pte
from ..errors import InputError, PteforgeError
from .scratch import scratch_folder
from .selection import Wishes, backend_problem, first_line, load_program, select
from .signature import call_mismatch, inputs_problem, shape_problem

_Item = TypeVar("_Item")


def load(
    path: str | Path,
    *,
    prefer: Iterable[str] = (),
    exclude: Iterable[str] = (),
    data_files: Iterable[str | Path] = (),
) -> LoadedProgram:
    """Loads a `.pte` file into ExecuTorch's Python runtime.

    Of a fat file, the first payload is taken whose backends are registered and available, whose bytes are what they
    should be, and whose methods load. Order is priority.

    Args:
        path: the file, fat or plain.
        prefer: names of payloads to try first, in this order.
        exclude: names of payloads not to try.
        data_files: `.ptd` files with data that the file keeps outside.

    Raises:
        InputError: the file cannot be read, is damaged, or needs what this machine does not have; a `.ptd` is missing,
            or another file's; a name is not that of a payload. As NoPayloadFits where no payload of a fat file can run.
        PteforgeError: the runtime refuses a plain file.
    """
    file, wishes = Path(path), Wishes(_several(prefer), _several(exclude))
    outside = tuple(map(Path, _several(data_files)))
    pte = open_pte(file)
    return _load_fat(file, wishes, outside) if is_fat(pte) else _load_plain(file, pte, wishes, outside)


@dataclass(frozen=True)
class LoadedProgram:
    """A program that is ready to run.

    Attributes:
        payload: name of the payload that runs; None for a plain file.
        report: what became of each payload that was looked at, a line each; empty for a plain file.
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

    def run(self, method: str, inputs: Sequence[Any] = ()) -> list[Any]:
        """Runs a method.

        Args:
            method: its name.
            inputs: tensors and numbers in the method's order.

        Returns:
            Outputs in the method's order. Tensors are copies: the next call leaves them as they are.

        Raises:
            InputError: there is no such method, or the inputs are not what it takes.
            PteforgeError: the runtime fails; or the payload has another signature than the fat file says.
        """
        if method not in self._programs:
            raise InputError(f"{self._file} has no method {method!r}; it has {', '.join(map(repr, self.methods))}")
        if method in self._mismatches:
            raise self._unfit(method, self._mismatches[method])
        signature = self._signatures.get(method)
        if signature and (problem := inputs_problem(signature, inputs)):
            raise InputError(f"{self._file} cannot run {method!r}: {problem}")
        try:
            loaded = self._programs[method].load_method(method)
        except (RuntimeError, KeyError) as error:
            problem = f"the runtime cannot load {method!r} of {self._file}: {first_line(error)}{self._advice}"
            raise PteforgeError(problem) from error
        try:
            outputs = list(loaded.execute(inputs))
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise PteforgeError(f"the runtime cannot run {method!r} of {self._file}: {first_line(error)}") from error
        if signature and self.payload and (problem := _misfit(signature.outputs, outputs)):
            raise self._unfit(method, problem)
        return outputs

    def _unfit(self, method: str, problem: str) -> PteforgeError:
        return PteforgeError(f"payload {self.payload} of {self._file} does not fit the file: of {method!r}, {problem}")


def _misfit(specs: Sequence[ValueSpec], outputs: Sequence[Any]) -> str | None:
    """The first output whose sizes are not those of the fat file; its payload may have others."""
    for position, (spec, output) in enumerate(zip(specs, outputs, strict=False)):
        if isinstance(spec, TensorSpec) and hasattr(output, "shape"):
            problem = shape_problem(spec, output.shape, "gives")
            if problem:
                return f"output {position} {problem}"
    return None


def _several(items: Iterable[_Item]) -> tuple[_Item, ...]:
    if isinstance(items, str | Path):
        raise TypeError(f"{items!r} has to be in a list, also if it is the only one")
    return tuple(items)


def _load_plain(file: Path, pte: PteFile, wishes: Wishes, data_files: Sequence[Path]) -> LoadedProgram:
    if wishes:
        raise InputError(f"{file} is not a fat file: there are no payloads to prefer or exclude")
    if len(data_files) > 1:
        raise InputError(f"{file} is not a fat file: ExecuTorch's Python runtime takes one .ptd file with it")
    if BACKEND_ID in pte.backends:
        raise InputError(
            f"{file} cannot run here: what it delegates to {BACKEND_ID} are parts of it, each with its own container, "
            "and only the C++ library runs such files"
        )
    for backend in pte.backends:
        if problem := backend_problem(backend):
            raise InputError(f"{file} cannot run here: {problem}")
    data = next(iter(data_files), None)
    check_data_file(file, pte, data)
    program = _load_program(file, data)
    names = _method_names(pte.methods)
    signatures = {method.name: method for method in pte.methods}
    programs = dict.fromkeys(names, program)
    return LoadedProgram(None, (), names, file, programs, signatures, {}, _advice(file, pte, data))


def _advice(file: Path, pte: PteFile, data: Path | None) -> str:
    """What to do where a method does not load: what some delegates look for outside, only their backends can tell."""
    if not may_keep_outside(file, pte):
        return ""
    if data is None:
        return f"; {', '.join(pte.backends)} may look for weights in a .ptd file, and none was given"
    return f"; is {data} the .ptd that was made with it?"


def _load_fat(file: Path, wishes: Wishes, data_files: Sequence[Path]) -> LoadedProgram:
    fat = open_fat(file, data_files)
    delegated = [method for method in fat.outer.methods if _delegates(method)]
    own = [method for method in fat.outer.methods if not _delegates(method)]
    with _shared_data(fat) as named_data:
        choice = select(file, fat.container, _method_names(delegated), wishes, named_data)
    inner = {method.name: method for method in choice.pte.methods}
    mismatches = {method.name: call_mismatch(method, inner[method.name]) for method in delegated}
    programs = dict.fromkeys(_method_names(delegated), choice.program)
    if own:  # constants: they are no payload's
        programs |= dict.fromkeys(_method_names(own), _load_program(file))
    return LoadedProgram(
        choice.name,
        choice.report,
        _method_names(fat.outer.methods),
        file,
        programs,
        {method.name: method for method in delegated},
        {name: problem for name, problem in mismatches.items() if problem},
    )


def _delegates(method: Method) -> bool:
    return any(delegate.id == BACKEND_ID for delegate in method.delegates)


def _method_names(methods: Iterable[Method]) -> tuple[str, ...]:
    return tuple(method.name for method in methods)


def _load_program(file: Path, data_file: Path | None = None) -> Any:
    try:
        return load_program(file, data_file)
    except RuntimeError as error:
        raise PteforgeError(f"the runtime cannot load {file}: {first_line(error)}") from error


@contextmanager
def _shared_data(fat: FatFile) -> Iterator[Path | None]:
    """A `.ptd` file with what payloads of a version 1 container share: they are not complete without it.

    Python's runtime takes named data from a file only, and the outer program is not of that format.
    """
    if fat.container.version != V1 or not fat.container.named_data:
        yield None
        return
    with scratch_folder() as folder:
        path = folder / "named.ptd"
        path.write_bytes(_ptd(fat.container.named_data))
        yield path


def _ptd(named: Mapping[Any, Any]) -> bytes:
    """Named data as a `.ptd`. ExecuTorch's serializers are private; so they are called in executorch 1.5.1."""
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload  # noqa: PLC0415 - needed rarely
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer  # noqa: PLC0415 - as above

    entries = {key: DataEntry(index, 16, None) for index, key in enumerate(named)}
    payload = DataPayload([bytes(content) for content in named.values()], entries)
    return bytes(FlatTensorSerializer().serialize(payload))
