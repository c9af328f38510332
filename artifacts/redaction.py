"""What of a store's address and options may be shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit


def public_url(url: str) -> str:
    """A URL without user name, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets_in(url: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Values that must not be shown: passwords in the URL, and every text option but addresses."""
    values = [urlsplit(url).password, os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ.get("AWS_SESSION_TOKEN")]
    pending: list[tuple[str, Any]] = list(options.items())
    while pending:
        name, value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.items()
        elif isinstance(value, str) and not name.endswith(("url", "host", "region_name")):
            values.append(value)
    return tuple(value for value in values if value and len(value) > 3)
