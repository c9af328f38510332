"""The progress of a run of a zoo, as an artifact in Prefect's UI: how many of the stages that are known are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from .prefect_pages import artifact_key
from .session import Session

_PAUSE = 5.0  # seconds between updates
_PATIENCE = 10.0  # seconds for the last update


@asynccontextmanager
async def progress_shown(session: Session) -> AsyncIterator[None]:
    """Shows the session's progress in the current flow run while the context is open; work never waits for it."""
    ended = asyncio.Event()
    showing = asyncio.create_task(_show(session, ended))
    try:
        yield
    finally:
        ended.set()
        with session.without_prefect_if_it_fails():
            await asyncio.wait_for(showing, _PATIENCE)


async def _show(session: Session, ended: asyncio.Event) -> None:
    key, shown, pace = artifact_key("progress", session.zoo), (-1, -1), session.pace
    await asyncio.to_thread(session.expect_stages)
    artifact = await acreate_progress_artifact(0.0, key=key, description="No stage is done yet")
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _PAUSE)
        if ended.is_set() or shown == (shown := (pace.done, pace.known)):
            continue
        done, known = shown
        percent = 100 * done / max(known, 1)
        await aupdate_progress_artifact(artifact, percent, f"{done} of {known} known stages done")
    complete = "" if session.complete else "; some models were not reached"
    await aupdate_progress_artifact(artifact, 100.0, f"{pace.done} stages done{complete}")
