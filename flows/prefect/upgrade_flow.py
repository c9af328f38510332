"""The Prefect flow that rehearses an upgrade of a zoo's toolchain: `pteforge upgrade`, on a schedule."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from prefect import artifacts, flow
from prefect.states import Completed, Failed

from ...errors import PteforgeError, printable
from ..reports.figures_text import markdown
from ..run.request import ExportRequest, describe, fields_for
from ..run.session import load
from ..run.toolchains import COMMAND, arguments_of
from .pages import artifact_key

_log = logging.getLogger(__name__)

FIELDS = ("out", *fields_for("upgrade"))
"""Those of a request that the flow takes."""
TO, FAIL_ON = "A toolchain of the zoo, or the Python of an environment with pteforge.", "Limits, as `diff` has them."


async def _upgrade_zoo(to: str, fail_on: str | None = None, **fields: Any) -> Any:
    """Exports a zoo with this toolchain and with another one, into OUT/upgrade, and shows what an upgrade changes.

    Fails if a file is not made any more, or is worse than the limits. Releases nothing.
    """
    request = ExportRequest(**fields)
    zoo, apart = load(request).zoo.name, request.model_copy(update={"out": request.out / "upgrade"})
    command = [sys.executable, *COMMAND, "upgrade", *arguments_of(apart), "--to", to, "--markdown"]
    command += ["--fail-on", fail_on] if fail_on else []
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stdout  # noqa: S101 - a pipe
    try:
        text, problems = await asyncio.gather(process.stdout.read(), _problems(process))
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
    if code > 1 or not text:
        raise PteforgeError("; ".join(problems) or f"pteforge upgrade ended with exit code {code}")
    description = f"What an upgrade of {markdown(zoo)} to {markdown(to)} changes"
    await artifacts.acreate_markdown_artifact(text.decode(), key=artifact_key("upgrade", zoo), description=description)
    if code:
        return Failed(message=printable("; ".join(problems)))
    return Completed(message=printable(f"an upgrade to {to} keeps every file, within the limits"))


async def _problems(process: Process) -> list[str]:
    """Logs what a process says on standard error; returns what is wrong."""
    lines = []
    assert process.stderr  # noqa: S101 - a pipe
    async for line in process.stderr:
        _log.warning("%s", text := line.decode(errors="replace").rstrip())
        lines.append(text)
    return [text for kind in ("worse: ", "error: ") for line in lines if (text := line.removeprefix(kind)) != line]


_parameters = inspect.signature(_upgrade_zoo, eval_str=True).parameters
_of_request = inspect.signature(ExportRequest).parameters
_arguments = "\n".join(f"    {name}: {describe(name)}" for name in FIELDS)
_upgrade_zoo.__doc__ = f"{inspect.getdoc(_upgrade_zoo)}\n\nArgs:\n    to: {TO}\n    fail_on: {FAIL_ON}\n{_arguments}"
_upgrade_zoo.__dict__["__signature__"] = inspect.Signature(
    [
        *(_parameters[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in ("to", "fail_on")),
        *(_of_request[name] for name in FIELDS),
    ]
)
upgrade_zoo = flow(name="upgrade-zoo", flow_run_name="upgrade to {to}", persist_result=False)(_upgrade_zoo)
