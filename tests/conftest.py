"""What all tests share: folders of their own instead of the user's, and one Hypothesis profile."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

_ROOM = pytest.StashKey[tempfile.TemporaryDirectory]()

# Settings of the person who runs the tests must not reach them.
_FOREIGN = ("PREFECT_", "PTEFORGE_", "AWS_", "EXECUTORCH_")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the session, and every process it starts, its own cache, Prefect home and temporary environment.

    This happens before collection and not in a fixture, since Prefect reads its settings when it is imported.
    """
    room = tempfile.TemporaryDirectory(prefix="pteforge-tests-", ignore_cleanup_errors=True)
    config.stash[_ROOM] = room
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    os.environ["PTEFORGE_CACHE"] = str(Path(room.name) / "cache")
    os.environ["PREFECT_HOME"] = str(Path(room.name) / "prefect")
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the session's folders."""
    config.stash[_ROOM].cleanup()
