"""Where the store is: the cache folder, and the store that a path or URL names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .digest import digest_bytes
from .store import LocalOnlyStore, Store


def open_store(url: str | None = None, *, cache: Path | None = None) -> Store:
    """Opens the store at a URL.

    Args:
        url: None for the default (``<cache>/store``), a path or ``file://`` URL, or any other URL that fsspec
            understands, such as ``s3://bucket/prefix``.
        cache: folder for local copies; `cache_folder` by default.
    """
    cache = cache or cache_folder()
    if url is None:
        return LocalOnlyStore(cache / "store")
    if "://" not in url:
        return LocalOnlyStore(Path(url).expanduser().absolute())
    if (parts := urlsplit(url)).scheme in {"file", "local"}:
        return LocalOnlyStore(Path(unquote(parts.netloc + parts.path)).absolute())
    from .remote_store import RemoteStore  # noqa: PLC0415 - imports fsspec and tenacity, which a local store does without

    return RemoteStore(url, cache / "remotes" / digest_bytes(url.encode())[:16])


def cache_folder() -> Path:
    """``$PTEFORGE_CACHE``, ``$XDG_CACHE_HOME/pteforge`` or ``~/.cache/pteforge``; it may not exist yet."""
    if own := os.environ.get("PTEFORGE_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "pteforge"
    return Path.home() / ".cache" / "pteforge"
