"""The request for a run of a zoo: one value for commands, flows and records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from ...errors import InputError

BLOCK = "block:"
"""Prefix of the name of a Prefect block that has a store's URL and signing key."""

RunsOn = Literal["local", "pool", "dask", "ray"]  # as in `configs.zoo`, which completion has no time to import

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")  # pathlib makes one slash of two


def joined(globs: str | Sequence[str]) -> str:
    return globs if isinstance(globs, str) else ",".join(globs)


Globs = Annotated[str, BeforeValidator(joined, json_schema_input_type=str | list[str])]
"""Globs with commas between them; lists are converted."""


class Also:
    """Names the commands that take a field although they are no run of a zoo: of `EVERYWHERE`."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands


EVERYWHERE = Also("plan", "bisect", "doctor", "upgrade")


class ExportRequest(BaseModel):
    """The request for a run of a zoo.

    Each field is a parameter of the flows, an option of the commands that start runs and of those that `Also` names,
    and part of the run's record. Its docstring is the help of the option, and the description in Prefect's form.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    zoo: Annotated[Path, EVERYWHERE]
    """The zoo file; or, for one model, package.module:builder, hf:org/name or a .pt2 file."""
    models: Annotated[Globs, Also("plan", "doctor", "upgrade")] = "*"
    """Only models whose names match; several globs with commas between them."""
    recipes: Annotated[Globs, Also("plan", "upgrade")] = "*"
    """Only recipes whose names match; several globs with commas between them."""
    store: Annotated[str | None, EVERYWHERE] = Field(None, title="Artifact store")
    """Folder, URL (s3://bucket/prefix) or Prefect block (block:NAME) of the artifact store; by default in your cache folder."""  # noqa: E501 - one line of help
    out: Path = Field(Path("out"), title="Folder for results")
    """Folder for the files: DIR/MODEL/RECIPE.pte."""
    overrides: Annotated[tuple[str, ...], EVERYWHERE] = Field((), title="Changes to the zoo")
    """Replace a field of the zoo file for this run: KEY=VALUE, such as models.a.seed=3."""
    jobs: Annotated[int | None, Also("bisect", "doctor", "upgrade")] = Field(None, ge=1, title="Stages at once")
    """Stages at once; by default one per core."""
    until: Annotated[str | None, Also("plan")] = Field(None, title="Stop after")
    """Stop after this stage, such as edge, and make no files; by default all stages run."""
    debug: Annotated[bool, Also("plan")] = Field(default=False, title="Debug mode")
    """Debug mode: keep stack traces in the files, and write ETRecords and maps of debug handles next to them."""
    on: RunsOn | None = Field(None, title="Where stages run")
    """Run stages here, as runs on a Prefect work pool, or on a cluster; by default as the zoo says."""
    places: Annotated[tuple[str, ...], EVERYWHERE] = Field((), title="Verify also on")
    """Also verify on this place: the zoo's, or qemu:CORE, library:PATH, python:PATH, command:COMMAND; any number."""
    toolchain: str | None = Field(None, title="Toolchain")
    """Lower with this toolchain of the zoo, or with the Python at this path; by default as recipes say."""
    publish: str | None = Field(None, title="Release at")
    """Folder or URL to release the files at in the end; by default as the zoo says."""
    refresh: Annotated[bool, Also("plan", "doctor", "upgrade")] = Field(default=False, title="Run again what is cached")
    """Run stages again that are cached, each once; so does Prefect's setting PREFECT_TASKS_REFRESH_CACHE=true."""

    @field_validator("out", mode="before")
    @classmethod
    def _is_folder(cls, out: Any) -> Any:
        if _URL.match(str(out)):
            raise InputError(f"--out {out} is a URL, and results are files; choose a folder, and copy it from there")
        return out

    @field_validator("store", "until", "toolchain", "publish", mode="before")
    @classmethod
    def _is_given(cls, text: Any) -> Any:
        return text or None  # an empty field of Prefect's form

    @field_validator("until")
    @classmethod
    def _is_stage(cls, until: str | None) -> str | None:
        from ...tasks.lowering.graph import check_stage  # noqa: PLC0415 - imports much that completion has no time for

        return until and check_stage(until)

    @model_validator(mode="after")
    def _publishes_files(self) -> Self:
        if self.publish and self.until:
            raise InputError("--publish needs files, and --until stops before they are made; leave one of them out")
        return self

    def parameters(self, *, defaults: bool = True) -> dict[str, Any]:
        """The fields as JSON values: parameters of the flows. Paths are absolute, since runs start in other folders."""
        absolute: dict[str, Any] = {"zoo": self.zoo.absolute(), "out": self.out.absolute()}
        absolute |= {name: absolute_url(url) for name in ("store", "publish") if (url := getattr(self, name))}
        absolute["places"] = tuple(map(_absolute_library, self.places))
        return self.model_copy(update=absolute).model_dump(mode="json", exclude_defaults=not defaults)


def _absolute_library(place: str) -> str:
    kind, colon, path = place.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute()}" if colon and kind in ("library", "python") else place


def fields_for(command: str) -> dict[str, FieldInfo]:
    """The fields that a command takes although it is no run of a zoo."""
    return {
        name: field
        for name, field in ExportRequest.model_fields.items()
        if any(command in extra.commands for extra in field.metadata if isinstance(extra, Also))
    }


def describe(field: str) -> str:
    """The help text of a field of a request."""
    return ExportRequest.model_fields[field].description or ""


def absolute_url(text: str) -> str:
    """Makes a folder absolute; returns a URL or a block unchanged."""
    return text if "://" in text or text.startswith(BLOCK) else str(Path(text).absolute())
