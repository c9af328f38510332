"""Keys of Prefect's artifacts."""

from __future__ import annotations

import re


def artifact_key(kind: str, name: str) -> str:
    """A key that is the same in every run, of the characters that keys may consist of.

    Args:
        kind: what the artifact shows, such as ``accuracy``.
        name: of what: a model, maybe with a recipe.
    """
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
