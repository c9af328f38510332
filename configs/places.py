"""Places: runtimes that files are verified on, besides that of the process that makes them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, field_validator, model_validator

from ..errors import InputError
from .base import FrozenModel, Seconds

HOST = "host"  # the place that every zoo has: ExecuTorch's runtime in the processes that make files

_KINDS = ("library", "command", "qemu", "python")


def _check_command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a command: {error}") from error
    if not words:
        raise ValueError("is empty; write a command")
    return text


Command = Annotated[str, AfterValidator(_check_command)]
"""Words as a shell reads them; no shell runs them."""


class PlaceConfig(FrozenModel):
    """A runtime that verification runs on. Exactly one of `library`, `command`, `qemu` and `python` says how."""

    library: tuple[Path, ...] = Field(
        (),
        description="Shared libraries that register backends, loaded in order into a process of ExecuTorch's Python "
        "runtime; relative to this file. One may be written without a list.",
    )
    command: Command | None = Field(
        None,
        examples=["./on-phone"],
        description="A command that takes the arguments of nfat_run, and does elsewhere what it does. Words with a / "
        "that are files are relative to this file. nfat_run is the one that `pteforge runtime install host` builds, "
        "unless there is one on PATH.",
    )
    qemu: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,=+-]*$",
        examples=["cortex-a53"],
        description="An Arm core that QEMU emulates, on which nfat_run runs: `pteforge runtime install arm64`.",
    )
    python: Path | None = Field(
        None,
        description="The Python of another environment with pteforge, whose release of ExecuTorch runs files; relative "
        "to this file.",
    )
    env: dict[str, str] = Field({}, description="Environment variables, such as VK_ICD_FILENAMES.")
    about: Command | None = Field(
        None,
        examples=["adb shell getprop ro.build.fingerprint"],
        description="A command that prints which device and driver the place has: files are run again where that "
        "changes, and are not run where it fails. Left out: what nfat_run says, or Vulkan of a library for it.",
    )
    timeout: Seconds | None = Field(
        None, description="Wall time of each payload; left out: 10m, or the model's `limits.timeout` if that is less."
    )
    required: StrictBool = Field(
        False,
        description="true: a recipe fails if the place cannot be reached, finds no device, or can run nothing of its "
        "file. false: that is reported as not run. Places of --place are required.",
    )

    @field_validator("library", mode="before")
    @classmethod
    def _as_list(cls, written: object) -> object:
        return [written] if isinstance(written, str | Path) else written

    @model_validator(mode="after")
    def _is_one_kind(self) -> PlaceConfig:
        written = [name for name in _KINDS if getattr(self, name)]
        if len(written) != 1:
            found = " and ".join(written) or "none"
            raise ValueError(f"needs exactly one of {', '.join(_KINDS)}, and has {found}")
        return self

    @classmethod
    def parse(cls, text: str) -> tuple[str, PlaceConfig]:
        """Name and required place of a text such as ``qemu:cortex-a53`` or ``command:./run``; raises InputError."""
        kind, colon, value = text.partition(":")
        if kind not in _KINDS or not colon or not value:
            raise InputError(
                f"{text!r} is no place: name one of the zoo's, or write qemu:cortex-a53, library:PATH, python:PATH "
                "or command:COMMAND"
            )
        try:
            words = shlex.split(value) if kind == "command" else [value]
            found = [str(Path(word).expanduser().absolute()) if _is_path(word, kind) else word for word in words]
            config = cls.model_validate({kind: shlex.join(found) if kind == "command" else found[0], "required": True})
        except ValueError as error:
            raise InputError(f"{text!r} is no place: {error}") from error
        if kind == "python":  # its environment has the name that tells
            return config.python.parents[1].name, config  # type: ignore[union-attr]  # as it was given
        return (value if kind == "qemu" else Path(words[0]).stem), config


def _is_path(word: str, kind: str) -> bool:
    return kind in ("library", "python") or (kind == "command" and "/" in word and Path(word).exists())
