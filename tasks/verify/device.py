"""Runs files on another machine, by a command that does there what `nfat_run` of `runtime/host` does."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...configs.verification import VerifyBounds
from ...errors import InputError, PteforgeError, VerificationFailed, printable
from ..results.figures import Figures, summarize
from .compare import worst_parts
from .running import ExpectedCall, Loadable, Sample
from .verification import run_cases

_CHOSEN = re.compile(r"^(\S+): chosen: ", re.MULTILINE)
_LINES = 5  # of the command's messages
_COUNTED = 2  # calls: what a backend makes in the first one may stay
_FORMATS: Mapping[type, str] = {bool: "<?", int: "<q", float: "<d"}


def verify_program(program: DeviceProgram, examples: Mapping[str, Mapping[str, Any]], bounds: VerifyBounds) -> Figures:
    """Runs a program on the examples that `export` stored; a fat file runs the payload chosen there.

    Raises VerificationFailed if the command fails or outputs are outside the bounds, InputError without the command.
    """
    cases = [replace(case, payload=program.payload) for case in run_cases(program, examples, bounds)]
    return summarize(cases, parts=worst_parts(cases, bounds))


@contextmanager
def device_program(
    command: Sequence[str], path: Path, data_files: Sequence[Path], env: Mapping[str, str]
) -> Iterator[DeviceProgram]:
    """A file that a command runs in a temporary folder with all files that its arguments name.

    Words of the command that are paths of existing files may be relative to the current folder. `env` is added to its
    environment.
    """
    with TemporaryDirectory(prefix="pteforge-device-") as folder:
        yield DeviceProgram(command, Path(folder), path, next(iter(data_files), None), env)


class DeviceProgram:
    """A program that a command runs, as `Runnable` and `Measurable`."""

    def __init__(
        self, command: Sequence[str], folder: Path, path: Path, data: Path | None, env: Mapping[str, str]
    ) -> None:
        self.path = path
        self.payload = ""  # that the last call chose; empty for a plain file
        words = (str(Path(word).absolute()) if "/" in word and Path(word).exists() else word for word in command)
        shutil.copyfile(path, folder / "model.pte")
        if data:
            shutil.copyfile(data, folder / "weights.ptd")
        self._command = [*words, *(["--data", "weights.ptd"] if data else [])]
        self._folder = folder
        self._env = {**os.environ, **env}
        self._signatures = Loadable(path, data).signatures()

    def run(self, calls: Sequence[ExpectedCall]) -> Iterator[Sequence[Any]]:
        arguments: list[str] = []
        for call in calls:
            number = len(arguments)
            laid_out = self._signatures[call.method].lay_out(call.inputs)
            inputs = [self._argument(value, number + position) for position, value in enumerate(laid_out)]
            arguments += [*(["--"] if arguments else []), call.method, *inputs]
        where = f"method {calls[-1].method!r}, {calls[-1].label}"
        content = memoryview(self._output(["model.pte", *arguments], where))
        wanted = sum(_size(value) for call in calls for value in call.expected)
        if len(content) != wanted:
            raise VerificationFailed(
                f"{where}: the command wrote {len(content)} bytes of outputs, eager's have {wanted}; it must write "
                "nothing else to its standard output"
            )
        for call in calls:
            outputs = []
            for value in call.expected:
                outputs.append(_parse(content[: _size(value)], value))
                content = content[_size(value) :]
            yield outputs

    def sample(self, method: str, inputs: Sequence[Any], calls: int) -> Sample:
        content = self._measure("--bench", method, inputs, calls)
        try:
            measured = json.loads(content)
            peak = max(0, measured.get("resident_peak", 0) - measured.get("resident_before", 0))
            return Sample(measured["load"], measured["calls"], peak)
        except (ValueError, LookupError, TypeError) as error:
            raise PteforgeError(f"the command does not understand --bench of nfat_run: {error}") from error

    def trace(self, method: str, inputs: Sequence[Any], calls: int) -> bytes:
        return self._measure("--etdump", method, inputs, calls)

    def count(self, method: str, inputs: Sequence[Any]) -> bytes:
        return self._measure("--memory", method, inputs, _COUNTED)

    def _measure(self, option: str, method: str, inputs: Sequence[Any], calls: int) -> bytes:
        arguments = [self._argument(value, number) for number, value in enumerate(inputs)]
        words = ["--repeat", str(calls), option, "model.pte", method, *arguments]
        return self._output(words, f"method {method!r} with {option}")

    def _argument(self, value: Any, number: int) -> str:
        if not isinstance(value, torch.Tensor):
            return str(int(value) if isinstance(value, bool) else value)
        name = f"{number}.bin"
        in_memory = value.as_strided((value.numel(),), (1,))
        (self._folder / name).write_bytes(in_memory.view(torch.uint8).numpy().tobytes())
        return f"{'x'.join(map(str, value.shape))}:{name}"

    def _output(self, arguments: Sequence[str], where: str) -> bytes:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - the user's
                command, cwd=self._folder, env=self._env, capture_output=True, check=False
            )
        except OSError as error:
            raise InputError(f"the command {command[0]!r} cannot be run: {error.strerror}") from error
        messages = done.stderr.decode(errors="replace")
        if done.returncode:
            last = "\n".join(printable(line) for line in messages.splitlines()[-_LINES:])
            raise VerificationFailed(f"{where}: the command ended with exit code {done.returncode}:\n{last}")
        self.payload = next(iter(_CHOSEN.findall(messages)), "")
        return done.stdout


def _size(expected: Any) -> int:
    """The bytes of an output."""
    if isinstance(expected, torch.Tensor):
        return int(expected.nbytes)
    return struct.calcsize(_FORMATS[type(expected)]) if type(expected) in _FORMATS else 0


def _parse(content: memoryview, expected: Any) -> Any:
    """The output that has the type, dtype and shape of eager's."""
    if isinstance(expected, torch.Tensor):
        flat = torch.frombuffer(bytearray(content), dtype=expected.dtype) if content else expected.reshape(-1)
        return flat.reshape(expected.shape)
    return struct.unpack(_FORMATS[type(expected)], content)[0] if content else expected
