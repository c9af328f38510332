"""Finds the places that a recipe verifies its files on: what they run, and what they say of themselves.

Needs no torch, since keys have the answers.
"""

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
_TOLD = 4000  # characters of what it says that are kept
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
        """The limits of a stage that runs there: a place that hangs is not waited for as long as for other stages."""
        return of_model.model_copy(update={"timeout": self.timeout or min(of_model.timeout, _PAYLOAD_SECONDS)})


def plan_place(name: str, config: PlaceConfig, folder: Path) -> PlannedPlace:
    """Asks a place what it is. Paths of a command are relative to `folder`.

    Raises SourceError if one of its files or programs does not exist. One that does not answer is unreachable.
    """
    place = PlannedPlace(name, PlaceParams(), config.required, timeout=config.timeout)
    try:
        command = _command(config, folder)
        files = [Path(word) for word in (*command, *map(str, config.library)) if Path(word).is_file()]
        if missing := [path for path in config.library if not path.is_file()]:
            raise SourceError(f"there is no library {missing[0]}")
        params = PlaceParams(
            library=tuple(map(str, config.library)),
            command=command,
            env=dict(config.env),
            digests={path.name: digest_file(path) for path in files},
        )
    except _Unreachable as error:
        return replace(place, unreachable=str(error))
    try:
        about = _about(config, command, folder)
    except _Unreachable as error:
        return replace(place, params=params, unreachable=str(error))
    backends = tuple(_BACKEND.findall(about)) if command and not config.about else None
    return replace(place, params=params.model_copy(update={"about": about, "backends": backends}))


class _Unreachable(Exception):
    """Says why a place cannot be reached."""


def _command(config: PlaceConfig, folder: Path) -> tuple[str, ...]:
    """The command of a place, with absolute paths; empty for a library."""
    if config.qemu:
        try:
            return arm_host(config.qemu)
        except InputError as error:
            raise _Unreachable(str(error)) from error
    words = shlex.split(config.command or "")
    if words[:1] == [NFAT_RUN] and shutil.which(NFAT_RUN) is None:
        try:
            words[0] = own_host()
        except InputError as error:
            raise _Unreachable(str(error)) from error
    return tuple(
        str((folder / word).absolute()) if "/" in word and (folder / word).exists() else word for word in words
    )


def _about(config: PlaceConfig, command: Sequence[str], folder: Path) -> str:
    """What a place says of itself."""
    if config.about:
        return _said(shlex.split(config.about), config.env, folder)
    if command:
        if shutil.which(command[0]) is None:
            raise SourceError(f"the command {command[0]!r} cannot be run: there is no such program")
        return _said((*command, "--about"), config.env, folder)
    if any(_VULKAN in path.read_bytes() for path in config.library):
        asks = f"from {arm_host.__module__} import print_vulkan_devices; print_vulkan_devices()"
        return _said((sys.executable, "-c", asks), config.env, folder)
    return ""


def _said(command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """The output of a command."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's
            command, cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _Unreachable(f"{shlex.join(command)} did not answer within {_SECONDS:g} s") from error
    except OSError as error:
        raise _Unreachable(f"{shlex.join(command)} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = first_line(done.stderr.decode(errors="replace")) or "it says nothing"
        raise _Unreachable(f"{shlex.join(command)} ended with exit code {done.returncode}: {printable(said)}")
    return printable(done.stdout.decode(errors="replace").strip()[:_TOLD], keep="\n")
