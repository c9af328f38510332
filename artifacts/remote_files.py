"""Files behind an fsspec URL, each put there as a whole; errors of all backends as one kind, without secrets."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from ..errors import StoreUnusable
from .files import Files
from .redaction import public_url, secrets_in

OPTIONS_VARIABLE = "PTEFORGE_STORE_OPTIONS"

_Answer = TypeVar("_Answer")

_CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols where a put is atomic, and where fsspec's ``mode="create"`` makes it conditional on the server's side."""

_TRANSIENT_ERRNO = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EIO, errno.ENETUNREACH, errno.EPIPE,
    errno.EREMOTEIO, errno.ETIMEDOUT,
})  # fmt: skip
"""s3fs translates the server's SlowDown, ServiceUnavailable and InternalError to EBUSY and EREMOTEIO."""

_TRANSIENT_NAMES = frozenset({"ConnectionError", "HTTPClientError", "ClientConnectionError"})
"""Base classes in botocore and aiohttp, which are not imported for those who do not use them."""

_creating = threading.Lock()
"""Makes "is it there? then make it" one step for the threads of this process, on backends that cannot."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One line of a listing.

    Attributes:
        name: relative to the store.
        size: bytes.
        modified: seconds since the epoch on the server's clock.
    """

    name: str
    size: int
    modified: float


class RemoteFiles(Files):
    """Files below an fsspec URL.

    Attributes:
        url: without credentials, for messages.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Finds the file system for `url`, without using it yet; raises StoreUnusable where there is none."""
        self.url = public_url(url)
        self._options = options if options is not None else _options_from_environment()
        self._secrets = secrets_in(url, self._options)
        self._protocol = url.partition("://")[0]
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **self._options)
        except ImportError as error:
            extra = "pip install 'pteforge[s3]'" if self._protocol in {"s3", "s3a"} else "install it"
            raise StoreUnusable(f"the store {self.url} needs a package that is not here: {error}; {extra}") from error
        except Exception as error:  # noqa: BLE001 - whatever a backend raises for an URL or options it does not take
            raise StoreUnusable(f"the store {self.url} cannot be opened: {self._describe(error)}") from None
        self._root = root.rstrip("/") + "/"

    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""
        try:
            return bytes(self._call("read", lambda: self._fs.cat_file(self._root + name), FileNotFoundError))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file."""
        with self._whole(name) as target:
            self._call("write", lambda: self._fs.pipe_file(target, content))

    def create(self, name: str, content: bytes) -> bool:
        """Makes a file unless there is one; says whether it has this content, which is to be unique to the caller."""
        if self._protocol in _CONDITIONAL:
            path = self._root + name
            try:
                self._call("write", lambda: self._fs.pipe_file(path, content, mode="create"), FileExistsError)
            except FileExistsError:
                pass
            except StoreUnusable:  # servers word a failed condition in several ways
                if self.read(name) is None:
                    raise
        else:
            with _creating:
                if self.read(name) is None:
                    self.write(name, content)
        # Ours may be there although the call failed and was tried again, another's although it seemed to succeed: on
        # servers that ignore the condition.
        return self.read(name) == content

    def delete(self, name: str) -> None:
        """Removes a file; nothing happens where there is none."""
        with contextlib.suppress(FileNotFoundError):
            self._call("write", lambda: self._fs.rm_file(self._root + name), FileNotFoundError)

    def names(self, folder: str) -> list[str]:
        """Sorted names of all files below a folder."""
        return [file.name for file in self.list(folder)]

    def list(self, folder: str) -> list[RemoteFile]:
        """All files below a folder, sorted by name."""
        self._fs.invalidate_cache()  # listings are cached by default, and others write here
        found = self._call("list", lambda: self._fs.find(self._root + folder, detail=True))
        return [
            RemoteFile(path[len(self._root) :], details["size"], self._modified(path, details))
            for path, details in sorted(found.items())
            if path.startswith(self._root + folder + "/")
        ]

    def find(self, name: str) -> RemoteFile | None:
        """What is known of a file without reading it, None where there is none."""
        self._fs.invalidate_cache()
        path = self._root + name
        try:
            details = self._call("read", lambda: self._fs.info(path), FileNotFoundError)
        except FileNotFoundError:
            return None
        return RemoteFile(name, details["size"], self._modified(path, details))

    def upload(self, path: Path, name: str) -> None:
        """Puts a local file there, replacing one of that name."""
        with self._whole(name) as target:
            self._call("write", lambda: self._fs.put_file(str(path), target))

    def download(self, name: str, path: Path) -> bool:
        """Copies a file to a local path; False where there is none."""
        try:
            self._call("read", lambda: self._fs.get_file(self._root + name, str(path)), FileNotFoundError)
        except FileNotFoundError:
            return False
        return True

    def move(self, name: str, new_name: str) -> None:
        """Gives a file another name."""
        self._make_folder(new_name)
        self._call("write", lambda: self._fs.mv(self._root + name, self._root + new_name))

    @contextlib.contextmanager
    def _whole(self, name: str) -> Iterator[str]:
        """Path to write a file to, so that others never see a part of it under its name."""
        if self._protocol in _CONDITIONAL:
            yield self._root + name
            return
        aside = f"tmp/{secrets.token_hex(16)}"
        self._make_folder(aside)
        try:
            yield self._root + aside
            self.move(aside, name)
        except BaseException:
            self.delete(aside)
            raise

    def _make_folder(self, name: str) -> None:
        if self._protocol not in _CONDITIONAL:  # buckets have no folders
            self._call("write", lambda: self._fs.makedirs((self._root + name).rpartition("/")[0], exist_ok=True))

    def _modified(self, path: str, details: Mapping[str, Any]) -> float:
        known = (details.get(name) for name in ("LastModified", "mtime", "updated", "last_modified", "created"))
        value = next((each for each in known if each), None) or self._call("read", lambda: self._fs.modified(path))
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return value.timestamp() if isinstance(value, datetime) else float(value)

    def _call(self, verb: str, action: Callable[[], _Answer], answer: type[OSError] | None = None) -> _Answer:
        """Runs an operation, a few times where its error may pass; errors become StoreUnusable, but for `answer`."""
        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            stop=stop_after_attempt(3) | stop_after_delay(5),  # botocore tries for 10 s by itself
            wait=wait_random_exponential(multiplier=0.2, max=5),
            reraise=True,
        )
        try:
            return retrying(action)
        except Exception as error:
            if answer and isinstance(error, answer):
                raise
            raise StoreUnusable(
                f"the store {self.url} cannot be {_PARTICIPLES[verb]}: {self._describe(error)}; "
                f"check its address, credentials and network ({OPTIONS_VARIABLE} holds options for it)"
            ) from None  # the cause may hold secrets

    def _describe(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


_PARTICIPLES = {"read": "read", "write": "written", "list": "listed"}


def _options_from_environment() -> dict[str, Any]:
    text = os.environ.get(OPTIONS_VARIABLE) or "{}"
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise StoreUnusable(f"{OPTIONS_VARIABLE} is not a JSON object of options for the store's fsspec file system")
    return options


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (FileNotFoundError, FileExistsError, PermissionError)):
        return False
    return (
        isinstance(error, (ConnectionError, TimeoutError))
        or (isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO)
        or any(parent.__name__ in _TRANSIENT_NAMES for parent in type(error).__mro__)
    )
