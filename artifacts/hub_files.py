"""Files in a repository of the Hugging Face Hub, where changes that belong together are one commit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError, StoreUnusable
from .remote_files import RemoteFile, RemoteFiles

SCHEME = "hf://"

_ADVICE = {
    401: "log in with `hf auth login`, or set HF_TOKEN; a repository that does not exist looks the same",
    403: "your token may not do this; create one with the permission to write",
    404: "there is no such repository or revision, or your token may not see it",
    412: "somebody else has changed the repository meanwhile; publish again",
}
"""What to do, by HTTP status."""


def open_files(url: str) -> RemoteFiles:
    """The files below a URL; buckets of the Hub are like those of other stores."""
    return HubFiles(url) if url.startswith(SCHEME) and not url.startswith(f"{SCHEME}buckets/") else RemoteFiles(url)


class _Copy(str):
    """The name of a file that is copied."""

    __slots__ = ()


def _size(content: Any) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def check_login(url: str) -> None:
    """Raises InputError without a login for writing there, StoreUnusable if the URL or the package is wrong."""
    files = open_files(url)
    if isinstance(files, HubFiles) and not files.token:
        raise InputError(f"there is no token for {files.url}: {_ADVICE[401].partition(';')[0]}")


class HubFiles(RemoteFiles):
    """Files of a repository at a branch: ``hf://[datasets/]ORG/NAME[@BRANCH][/FOLDER]``.

    Within `commit`, changes are seen by this object only, until all are committed at once. Others see the repository
    before or after it. Outside of `commit`, nothing can be changed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        from huggingface_hub import HfApi, get_token, parse_hf_uri  # noqa: PLC0415 - an extra
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415 - an extra

        if not sys.stderr.isatty():
            disable_progress_bars()
        try:
            address = parse_hf_uri(url)
        except ValueError as error:
            raise StoreUnusable(f"{url} is no address of a repository: {error}; write hf://ORG/NAME") from error
        options = self._fs.storage_options
        self._api: Any = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
        self.token = options.get("token") or get_token()
        self._repository = {"repo_id": address.id, "repo_type": address.type}
        self._branch = address.revision
        self._folder = f"{address.path_in_repo.rstrip('/')}/".lstrip("/")
        self._secrets = (*self._secrets, *filter(None, [self.token]))
        self._staged: dict[str, bytes | Path | _Copy | None] = {}  # by name; None: it is deleted
        self._committing = False

    @contextlib.contextmanager
    def commit(self, message: str) -> Iterator[None]:
        """Commits the changes within, creating repository and branch; StoreUnusable if the branch has moved."""
        self._call("created", lambda: self._api.create_repo(**self._repository, exist_ok=True))
        if self._branch:
            options = {**self._repository, "branch": self._branch, "exist_ok": True}
            self._call("written", lambda: self._api.create_branch(**options))
        self._fs.invalidate_cache()
        head = self._call("read", lambda: self._api.repo_info(**self._repository, revision=self._branch)).sha
        self._committing = True
        try:
            yield
            if self._staged:
                self._call("written", lambda: self._send(message, head))
        finally:
            self._staged, self._committing = {}, False
            self._fs.invalidate_cache()

    def _send(self, message: str, head: str) -> None:
        operations = {name: self._operation(name, content) for name, content in self._staged.items()}
        files = {content: operations[name] for name, content in self._staged.items() if isinstance(content, Path)}
        branch = {**self._repository, "revision": self._branch}
        self._api.preupload_lfs_files(**branch, additions=files.values(), free_memory=False)  # each file once
        self._api.create_commit(**branch, operations=operations.values(), commit_message=message, parent_commit=head)

    def read(self, name: str, *limit: int) -> bytes | None:
        content = self._staged.get(name)
        if name in self._staged and not isinstance(content, _Copy):
            return content.read_bytes() if isinstance(content, Path) else content
        if not self._committing:  # a commit is refused if the branch has moved
            self._fs.invalidate_cache()
        return super().read(name, *limit)

    def write(self, name: str, content: bytes) -> None:
        self._stage(name, content)

    def upload(self, path: Path, name: str) -> None:
        self._stage(name, path)

    def copy(self, name: str, new_name: str) -> None:
        """Gives a file a second name; the Hub stores its content once."""
        self._stage(new_name, self._staged.get(name) or _Copy(name))

    def delete(self, name: str) -> None:
        if super().find(name):
            self._stage(name, None)
        else:
            self._staged.pop(name, None)

    def list(self, folder: str) -> list[RemoteFile]:
        staged = {name: content for name, content in self._staged.items() if name.startswith(f"{folder}/")}
        there = [file for file in super().list(folder) if file.name not in staged]
        added = [RemoteFile(name, _size(content), 0.0) for name, content in staged.items() if content is not None]
        return sorted([*there, *added], key=lambda file: file.name)

    def find(self, name: str) -> RemoteFile | None:
        if name in self._staged:
            content = self._staged[name]
            return None if content is None else RemoteFile(name, _size(content), 0.0)
        return super().find(name)

    def _stage(self, name: str, content: bytes | Path | _Copy | None) -> None:
        if not self._committing:
            raise StoreUnusable(
                f"{self.url} is a repository, where each change is a commit: only releases are written there; "
                "a bucket, hf://buckets/ORG/NAME, can be a store"
            )
        self._staged[name] = content

    def _operation(self, name: str, content: Any) -> Any:
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete  # noqa: PLC0415

        path = self._folder + name
        if isinstance(content, _Copy):
            return CommitOperationCopy(src_path_in_repo=self._folder + content, path_in_repo=path)
        return CommitOperationDelete(path) if content is None else CommitOperationAdd(path, content)

    def _modified(self, *_: Any) -> float:
        return 0.0  # of a commit: a request for each file, and nothing asks for it

    def _describe(self, error: BaseException) -> str:
        response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
        advice = _ADVICE.get(getattr(response, "status_code", 0))
        return super()._describe(error) + (f" ({advice})" if advice else "")
