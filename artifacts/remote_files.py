"""Files behind an fsspec URL, written atomically. Errors of all backends become StoreUnusable, without secrets."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.dirfs import DirFileSystem
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from ..errors import StoreAway, StoreUnusable, first_line, unusable
from .files import QUIET_WAIT, RECORD_LIMIT, NamedFiles, at_most

_log = logging.getLogger(__name__)

OPTIONS_VARIABLE = "PTEFORGE_STORE_OPTIONS"

OUTAGE_VARIABLE = "PTEFORGE_STORE_OUTAGE"  # environment variable: the longest outage in seconds that runs wait for
_OUTAGE = 600.0  # its default

_Result = TypeVar("_Result")

_CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols with an atomic put, which fsspec's ``mode="create"`` makes conditional on the server."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hf"}  # what installs the file system of a protocol

_TRANSIENT_ERRNO = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EIO, errno.ENETUNREACH, errno.EPIPE,
    errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO),  # Linux has it
})  # fmt: skip
"""s3fs translates the server's SlowDown, ServiceUnavailable and InternalError to EBUSY and EREMOTEIO."""

_TRANSIENT_NAMES = frozenset({"ConnectionError", "HTTPClientError", "ClientConnectionError"})
"""Base classes in botocore and aiohttp, which only their users have to import."""

PATIENCE = 30.0  # seconds that a server may take to say anything about what is written
_SLOWEST = 64 * 2**10  # bytes per second of the slowest connection that is waited for
_ATTEMPTS = 3  # after which a store that never answered is given up
_DELAY = 5.0  # seconds of failed attempts after which a store that never answered is given up
_BLOCK = 8 * 2**20  # bytes that `RemoteFiles.blocks` reads at a time

_creating = threading.Lock()
"""Makes check-and-create atomic among the threads of this process, for backends that cannot."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a listing."""

    name: str  # relative to the store
    size: int
    modified: float  # in seconds since the epoch on the server's clock


class RemoteFiles(NamedFiles):
    """Files below an fsspec URL; `url` has no credentials and is for messages."""

    def __init__(self, url: str) -> None:
        """Finds the file system for `url`, without using it yet; raises StoreUnusable if there is none."""
        self.url = public_url(url)
        self._outages = _Outages(self.url)
        options = _options_from_environment()
        self._secrets = _secrets_in(url, options)
        self._protocol = url.partition("://")[0]
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            extra = _EXTRAS.get(self._protocol)
            command = f"pip install 'pteforge[{extra}]'" if extra else "install it"
            raise StoreUnusable(f"the store {self.url} needs a missing package: {error}; {command}") from error
        except Exception as error:  # noqa: BLE001 - whatever a backend raises for a wrong URL or option
            raise StoreUnusable(f"the store {self.url} cannot be opened: {self._describe(error)}") from None
        self._root = root.rstrip("/") + "/"

    @property
    def failed(self) -> float:
        """Time of the last failure to answer any thread, on the clock of `time.monotonic`."""
        return self._outages.failed

    def read(self, name: str, limit: int = RECORD_LIMIT) -> bytes | None:
        try:
            return at_most(self._read_part(name, 0, limit + 1), limit)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with self._atomic(name) as target:
            self._call("written", lambda: self._fs.pipe_file(target, content, **self._within(len(content))))

    def create(self, name: str, content: bytes) -> bool:
        """Creates a file where there is no file or folder; returns whether it has this (unique) content now."""
        if self._protocol in _CONDITIONAL:
            path = self._root + name
            try:
                options = {"mode": "create", **self._within(len(content))}
                self._call("written", lambda: self._fs.pipe_file(path, content, **options), FileExistsError)
            except FileExistsError:
                pass
            except StoreUnusable:  # servers report a failed condition in several ways
                if self.read(name) is None:
                    raise
        else:
            with _creating:
                if self._call("read", lambda: self._fs.isdir(self._root + name)):
                    return False
                if self.read(name) is None:
                    self.write(name, content)
        # A failed and retried call may have created the file; a successful one may not: some servers ignore conditions.
        return self.read(name) == content

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call("written", lambda: self._fs.rm_file(self._root + name), FileNotFoundError)

    def names(self, folder: str) -> list[str]:
        return [file.name for file in self.list(folder)]

    def list(self, folder: str) -> list[RemoteFile]:
        self._fs.invalidate_cache()  # listings are cached by default, but others write too
        listing = self._call("listed", lambda: self._fs.find(self._root + folder, detail=True))
        return [
            RemoteFile(path[len(self._root) :], details["size"], self._modified(path, details))
            for path, details in sorted(listing.items())
            if path.startswith(self._root + folder + "/")
        ]

    def find(self, name: str) -> RemoteFile | None:
        self._fs.invalidate_cache()
        path = self._root + name
        try:
            details = self._call("read", lambda: self._fs.info(path), FileNotFoundError)
        except FileNotFoundError:
            return None
        return RemoteFile(name, details["size"], self._modified(path, details))

    def upload(self, path: Path, name: str) -> None:
        with self._atomic(name) as target:
            self._call("written", lambda: self._fs.put_file(str(path), target, **self._within(path.stat().st_size)))

    def download(self, name: str, path: Path, size: int) -> bool:
        """Copies at most `size` + 1 bytes of a file to `path`; returns whether the file exists."""
        try:
            with path.open("wb") as file:
                for start in range(0, max(size, 1), _BLOCK):
                    end = start + _BLOCK if start + _BLOCK < size else size + 1
                    file.write(self._read_part(name, start, end))
        except FileNotFoundError:
            return False
        return True

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Reads a file of `size` bytes in blocks, short or empty ones at its end; raises FileNotFoundError."""
        for start in range(0, size, _BLOCK):
            yield self._read_part(name, start, min(start + _BLOCK, size))

    def _read_part(self, name: str, start: int, end: int) -> bytes:
        """Bytes of a file, fewer at its end; raises FileNotFoundError if there is none."""
        read = functools.partial(self._fs.cat_file, self._root + name, start=start, end=end)
        if self._protocol in {"file", "local"} and Path(self._root + name).is_fifo():  # nobody may ever write to it
            raise StoreUnusable(f"{name} in {self.url} is a pipe; remove it")
        try:
            return bytes(self._call("read", read, FileNotFoundError))
        except StoreUnusable:  # servers do not give a part of nothing
            file = self.find(name)
            if file and file.size <= start:
                return b""
            raise

    def move(self, name: str, new_name: str) -> None:
        self._make_folder(new_name)
        self._call("written", lambda: self._fs.mv(self._root + name, self._root + new_name))

    @contextlib.contextmanager
    def _atomic(self, name: str) -> Iterator[str]:
        """Path to write a file to, so that others never see a part of it under its name."""
        if self._protocol in _CONDITIONAL:
            yield self._root + name
            return
        staging = f"tmp/{secrets.token_hex(16)}"
        self._make_folder(staging)
        try:
            yield self._root + staging
            self.move(staging, name)
        except BaseException:
            self.delete(staging)
            raise

    def _within(self, size: int) -> dict[str, float]:
        """The time limit for writing `size` bytes, if supported: aiohttp waits endlessly for leave to send a body."""
        timed = isinstance(self._fs, AsyncFileSystem) and not isinstance(self._fs, DirFileSystem)
        return {"timeout": PATIENCE + size / _SLOWEST} if timed else {}

    def _make_folder(self, name: str) -> None:
        if self._protocol not in _CONDITIONAL:  # buckets have no folders
            self._call("written", lambda: self._fs.makedirs((self._root + name).rpartition("/")[0], exist_ok=True))

    def _modified(self, path: str, details: Mapping[str, Any]) -> float:
        times = (details.get(name) for name in ("LastModified", "mtime", "updated", "last_modified", "created"))
        value = next(filter(None, times), None) or self._call("read", lambda: self._fs.modified(path))
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return value.timestamp() if isinstance(value, datetime) else float(value)

    def _call(self, participle: str, action: Callable[[], _Result], expected: type[OSError] | None = None) -> _Result:
        """Runs an operation, with retries as `_Outages` allows; errors other than `expected` become StoreUnusable."""
        outages = self._outages
        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            stop=outages.give_up,
            wait=wait_random_exponential(multiplier=0.2, max=5),
            before_sleep=lambda attempt: outages.note(self._describe(_error_of(attempt))),
            reraise=True,
        )
        try:
            result = retrying(action)
        except Exception as error:
            if expected and isinstance(error, expected):
                outages.end()
                raise
            outages.failed, outages.may_end = time.monotonic(), False
            away = _is_transient(error) and _is_outage(error)
            kind = StoreAway if away else unusable(error) if isinstance(error, OSError) else StoreUnusable
            raise kind(
                f"the store {self.url} cannot be {participle}: {self._describe(error)}; "
                f"check its address, credentials and network ({OPTIONS_VARIABLE} holds options for it)"
            ) from None  # the cause may hold secrets
        outages.end()
        return result

    def _describe(self, error: BaseException) -> str:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _Outages:
    """Times when a store does not answer, and how long they may last; for all threads that use the store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._longest = longest_outage()
        self._since: float | None = None
        self._logged = False
        self.failed = -math.inf  # when it last did not answer
        self.may_end = False  # whether the store has answered, and has not been given up since

    def note(self, problem: str) -> None:
        """Notes a failed attempt; logs the outage once, when it has lasted for some seconds."""
        self.failed = now = time.monotonic()
        self._since = since = self._since or now
        if self.may_end and not self._logged and now - since > QUIET_WAIT:
            self._logged = True
            _log.warning("the store %s does not answer, waiting up to %.0f s: %s", self._url, self._longest, problem)

    def end(self) -> None:
        if self._logged:
            _log.warning("the store %s answers again after %.0f s", self._url, time.monotonic() - (self._since or 0.0))
        self._since, self._logged, self.may_end = None, False, True

    def give_up(self, attempt: RetryCallState) -> bool:
        """Whether an attempt was the last one: a store that has answered before may be away for longer."""
        if not (self.may_end and _is_outage(_error_of(attempt))):
            return attempt.attempt_number >= _ATTEMPTS or _took_long(attempt)
        return time.monotonic() - (self._since or time.monotonic()) > self._longest


def longest_outage() -> float:
    """Seconds that runs wait for a store that has answered before; raises StoreUnusable for a wrong setting."""
    text = os.environ.get(OUTAGE_VARIABLE) or str(_OUTAGE)
    try:
        return max(0.0, float(text))
    except ValueError:
        raise StoreUnusable(f"{OUTAGE_VARIABLE} is not a number of seconds: {first_line(text)!r}; write 600") from None


def _error_of(attempt: RetryCallState) -> BaseException:
    error = attempt.outcome.exception() if attempt.outcome else None
    return error or TimeoutError()


def _took_long(attempt: RetryCallState) -> bool:
    """Whether to give up after an attempt: botocore retries for 10 s by itself, but not where it hears nothing."""
    silent = attempt.outcome is not None and isinstance(attempt.outcome.exception(), FSTimeoutError)
    return not silent and (attempt.seconds_since_start or 0.0) > _DELAY


def public_url(url: str) -> str:
    """A URL without user name, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def missing_bucket(url: str) -> str:
    """The bucket of an S3 URL, if it surely does not exist; otherwise an empty text."""
    protocol, _, path = url.partition("://")
    bucket = path.partition("/")[0]
    if protocol not in {"s3", "s3a"}:
        return ""
    try:
        files, _ = fsspec.core.url_to_fs(url, **_options_from_environment())
        files.call_s3("head_bucket", Bucket=bucket)
    except FileNotFoundError:
        return bucket
    except Exception:  # noqa: BLE001 - no permission, no network, no package: the workers may have what is missing here
        return ""
    return ""


def _secrets_in(url: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Values that must not appear in messages: passwords in the URL, and every text option except addresses."""
    values = [urlsplit(url).password, os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ.get("AWS_SESSION_TOKEN")]
    pending: list[tuple[str, Any]] = list(options.items())
    while pending:
        name, value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.items()
        elif isinstance(value, str) and not name.endswith(("url", "host", "region_name")):
            values.append(value)
    return tuple(value for value in values if value and len(value) > 3)


def _options_from_environment() -> dict[str, Any]:
    text = os.environ.get(OPTIONS_VARIABLE) or "{}"
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise StoreUnusable(f"{OPTIONS_VARIABLE} is not a JSON object of options for the store's fsspec file system")
    return options


def _is_outage(error: BaseException) -> bool:
    """Whether a transient error comes from a server in trouble, or no server, and not from the request."""
    response = getattr(error.__cause__, "response", None)  # botocore's
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return status is None or status >= 500 or status == 429


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (FileNotFoundError, FileExistsError, PermissionError)):
        return False
    return (
        isinstance(error, (ConnectionError, TimeoutError))
        or (isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO)
        or any(parent.__name__ in _TRANSIENT_NAMES for parent in type(error).__mro__)
    )
