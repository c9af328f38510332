"""Finds the places that a recipe verifies its files on. Needs no torch, since keys have what places say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...artifacts.digest import digest_file
from ...configs.model import Limits
from ...configs.places import PlaceConfig
from ...errors import InputError, SourceError, first_line, printable
from ..verify.emulators import NFAT_RUN, arm_host, own_host
from ..verify.stages.prove import PlaceParams

_SECONDS = 60.0  # that a place has to say what it is
_PAYLOAD_SECONDS = 600.0  # for each payload, unless the zoo says otherwise
_CHARACTERS = 4000  # characters of what it says that are kept
_BACKEND = re.compile(r"^backend: (\S+)$", re.MULTILINE)
_VULKAN = b"libvulkan.so"  # in libraries that look for a driver of Vulkan


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """A place of a recipe."""

    name: str
    params: PlaceParams
    required: bool = False
    unreachable: str = ""  # why it cannot be reached, if it cannot
    timeout: float | None = None  # seconds of each payload there, as written

    def limits(self, of_model: Limits) -> Limits:
        """The limits of a stage that runs there, with a shorter timeout: places may hang."""
        return of_model.model_copy(update={"timeout": self.timeout or min(of_model.timeout, _PAYLOAD_SECONDS)})


def plan_place(name: str, config: PlaceConfig, folder: Path) -> PlannedPlace:
    """Asks a place what it is; one that does not answer is unreachable. Paths of a command are relative to `folder`.

    Raises SourceError if one of its files or programs does not exist.
    """
    place = PlannedPlace(name, PlaceParams(), config.required, timeout=config.timeout)
    try:
        command = _command(config, folder)
    except InputError as error:
        return replace(place, unreachable=str(error))
    if missing := [path for path in config.library if not path.is_file()]:
        raise SourceError(f"there is no library {missing[0]}")
    files = [Path(word) for word in (*command, *map(str, config.library)) if Path(word).is_file()]
    params = PlaceParams(
        library=tuple(map(str, config.library)),
        command=command,
        env=dict(config.env),
        digests={path.name: digest_file(path) for path in files},
    )
    try:
        about = _about(config, command, folder)
    except _Unreachable as error:
        return replace(place, params=params, unreachable=str(error))
    backends = tuple(_BACKEND.findall(about)) if command and not config.about else None
    return replace(place, params=params.model_copy(update={"about": about, "backends": backends}))


class _Unreachable(Exception):
    """Says why a place cannot be reached."""


def _command(config: PlaceConfig, folder: Path) -> tuple[str, ...]:
    """The command of a place, with absolute paths; empty for a library.

    Raises InputError if a program that runs files there has not been installed.
    """
    if config.qemu:
        return arm_host(config.qemu)
    words = shlex.split(config.command or "")
    if words[:1] == [NFAT_RUN] and shutil.which(NFAT_RUN) is None:
        words[0] = own_host()
    return tuple(
        str((folder / word).absolute()) if "/" in word and (folder / word).exists() else word for word in words
    )


def _about(config: PlaceConfig, command: Sequence[str], folder: Path) -> str:
    """What a place says of itself."""
    if config.about:
        return _output(shlex.split(config.about), config.env, folder)
    if command:
        if shutil.which(command[0]) is None:
            raise SourceError(f"the command {command[0]!r} cannot be run: there is no such program")
        return _output((*command, "--about"), config.env, folder)
    if any(_VULKAN in path.read_bytes() for path in config.library):
        asks = f"from {arm_host.__module__} import print_vulkan_devices; print_vulkan_devices()"
        return _output((sys.executable, "-c", asks), config.env, folder)
    return ""


def _output(command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's
            command, cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _Unreachable(f"{shlex.join(command)} did not answer within {_SECONDS:g} s") from error
    except OSError as error:
        raise _Unreachable(f"{shlex.join(command)} cannot be run: {error.strerror}") from error
    if done.returncode:
        message = first_line(done.stderr.decode(errors="replace")) or "it says nothing"
        raise _Unreachable(f"{shlex.join(command)} ended with exit code {done.returncode}: {printable(message)}")
    return printable(done.stdout.decode(errors="replace").strip()[:_CHARACTERS], keep="\n")
