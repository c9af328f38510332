"""Runs of a zoo in other environments: its `toolchains`, each with a Python that has torch, ExecuTorch and pteforge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...configs.base import did_you_mean
from ...errors import InputError
from .request import ExportRequest
from .session import load

_MAIN = "from pteforge.flows.cli import main; main()"


def python_of(request: ExportRequest, name: str) -> Path:
    """The Python of a toolchain of the request's zoo, or the one whose path is given instead of a name.

    Raises InputError if there is no such toolchain, or no program at that path.
    """
    known = load(request).zoo.toolchains
    if name not in known and os.sep not in name:
        raise InputError(
            f"the zoo has no toolchain {name!r}{did_you_mean(name, tuple(known))}; write "
            f"`toolchains: {{{name}: {{python: PATH}}}}` in it, or give the path of a Python"
        )
    python = known[name].python if name in known else Path(name).expanduser().absolute()
    if not os.access(python, os.X_OK) or python.is_dir():
        raise InputError(f"{python} cannot be run: it should be the Python of an environment with pteforge")
    return python


def export_with(python: Path | str, request: ExportRequest) -> int:
    """Runs `pteforge export` in the environment of a Python, and returns its exit code.

    What it prints goes to standard error.
    """
    command = [str(python), "-c", _MAIN, "export", *arguments_of(request)]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode  # noqa: S603 - the user's own Python


@dataclass(frozen=True, slots=True)
class Crossed:
    """What came of files of one toolchain on the runtime of another one.

    Attributes:
        ran: the lowest signal-to-noise ratio to eager of each file that runs there, in dB; None where all is equal.
        failed: why the others do not, or are wrong.
    """

    ran: dict[str, float | None]
    failed: dict[str, str]


def run_on(python: Path, folder: Path, store: str | None) -> Crossed:
    """Verifies files on the ExecuTorch runtime of another environment; raises InputError if that cannot be said."""
    command = [sys.executable, "-c", _MAIN, "verify", str(folder), "--place", f"python:{python}", "--json"]
    command += ["--store", store] if store else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own
    try:
        said = json.loads(done.stdout)
        ran = {name: figures["overall"]["sqnr_db"] for name, figures in said["verified"].items()}
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"the files in {folder} could not be verified with {python}, for the reason above") from error
    return Crossed(ran, dict(said["failed"]))


_OPTIONS = {"models": "--model", "recipes": "--recipe", "overrides": "--set", "places": "--place"}
"""Options that are not named for their field."""


def arguments_of(request: ExportRequest) -> list[str]:
    """The command line of a request."""
    fields = {name: value for name, value in request.parameters(defaults=False).items() if name != "zoo"}
    arguments = [str(request.zoo)]
    for name, value in fields.items():
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        values = value if isinstance(value, list) else [value]
        arguments += [part for each in values for part in ([option] if each is True else [option, str(each)])]
    return arguments
