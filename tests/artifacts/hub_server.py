"""A server of what the Hugging Face Hub's client asks about repositories, with LFS and without xet."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_a_secret_of_this_test"  # noqa: S105


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()  # noqa: S324 - as git does


@dataclass
class Hub:
    """Repositories by id, each with branches: the commits of each, as files by path."""

    url: str = ""
    repositories: dict[str, dict[str, list[dict[str, bytes]]]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)  # of commits
    stored: dict[str, bytes] = field(default_factory=dict)  # LFS objects by SHA-256
    requests: list[str] = field(default_factory=list)
    before_commit: Any = None  # called once before a commit
    before_file: Any = None  # called with the path of a file before each time that it is sent

    def files(self, repository: str, branch: str = "main") -> dict[str, bytes]:
        return self.repositories[repository][branch][-1]

    def head(self, repository: str, branch: str) -> str:
        commits = self.repositories[repository][branch]
        return sha1(f"{branch} {len(commits)}".encode())

    def push(self, repository: str, name: str, content: bytes) -> None:
        """A commit by somebody else."""
        commits = self.repositories[repository]["main"]
        commits.append({**commits[-1], name: content})


def is_large(content: bytes) -> bool:
    return b"\0" in content


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, value: Any = None, error: str = "", headers: dict[str, str] | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value if value is not None else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if error:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", error)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # of a client that was killed
                self.wfile.write(content)

    def _handle(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.command in ("POST", "PUT") and not known and not path.startswith("/lfs/"):
            self._answer(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/lfs/(\w+)", path):
            self.hub.stored[found[1]] = body
            self._answer(200)
        else:
            self._in_repository(path, body, known=known)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] == "forbidden":
            self._answer(403, {"error": "You don't have the rights to create a model under this namespace"})
            return
        there = name in self.hub.repositories
        self.hub.repositories.setdefault(name, {"main": [{".gitattributes": b"*.pte filter=lfs\n"}]})
        self._answer(409 if there else 200, {"url": f"{self.hub.url}/{name}"})

    def _in_repository(self, path: str, body: bytes, *, known: bool) -> None:  # noqa: C901, PLR0912 - a case per route
        found = re.match(r"/(?:api/models/)?([^/]+/[^/.]+)(?:\.git)?", path)
        repository = found[1] if found else ""
        if repository not in self.hub.repositories:
            self._answer(404 if known else 401, {"error": "Repository not found"}, "RepoNotFound")
            return
        branches, action = self.hub.repositories[repository], path[found.end() :] if found else ""
        if created := re.fullmatch(r"/branch/(\w+)", action):
            there = created[1] in branches
            branches.setdefault(created[1], [branches["main"][-1]])
            self._answer(409 if there else 200)
            return
        if action == "/info/lfs/objects/batch":
            objects = [
                entry
                if entry["oid"] in self.hub.stored
                else {**entry, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"}}}
                for entry in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
            return
        verb, _, rest = action.strip("/").partition("/")
        branch, _, name = rest.partition("/")
        branch = branch or "main"
        branch = next((known for known in branches if self.hub.head(repository, known) == branch), branch)
        if branch not in branches:
            self._answer(404, {"error": "Invalid rev id"}, "RevisionNotFound")
            return
        files = branches[branch][-1]
        if verb in ("", "revision"):
            self._answer(200, {"_id": "1", "id": repository, "sha": self.hub.head(repository, branch), "siblings": []})
        elif verb == "tree":
            inside = {key: content for key, content in files.items() if not name or key.startswith(f"{name}/")}
            if name and not inside:
                self._answer(404, {"error": "not found"}, "EntryNotFound")
            else:
                self._answer(200, self._tree(inside, name, recursive="recursive=true" in self.path.lower()))
        elif verb == "paths-info":
            asked = parse_qs(body.decode())["paths"]
            self._answer(200, [_entry(key, files[key]) for key in asked if key in files])
        elif verb == "preupload":
            self._answer(200, {"files": [self._mode(entry, files) for entry in json.loads(body)["files"]]})
        elif verb == "commit":
            self._commit(repository, branch, [json.loads(line) for line in body.splitlines()])
        elif verb == "resolve" and name in files:
            if self.hub.before_file and self.command == "GET":
                self.hub.before_file(name)
            self._resolve(files[name], self.hub.head(repository, branch))
        else:
            self._answer(404, {"error": "Entry not found"}, "EntryNotFound")

    @staticmethod
    def _tree(files: dict[str, bytes], folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        start = len(folder) + 1 if folder else 0
        entries = {key: _entry(key, content) for key, content in files.items() if recursive or "/" not in key[start:]}
        for key in files:
            parents = key[start:].split("/")[:-1]
            for depth in range(1, len(parents) + 1 if recursive else min(2, len(parents) + 1)):
                path = key[:start] + "/".join(parents[:depth])
                entries[path] = {"type": "directory", "path": path, "oid": sha1(path.encode())}
        return list(entries.values())

    @staticmethod
    def _mode(entry: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
        large = is_large(base64.b64decode(entry["sample"]))
        mode = {"path": entry["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        return {**mode, "oid": _entry("", files[entry["path"]])["oid"]} if entry["path"] in files else mode

    def _commit(self, repository: str, branch: str, lines: list[dict[str, Any]]) -> None:
        if self.hub.before_commit:
            self.hub.before_commit()
            self.hub.before_commit = None
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, self.hub.head(repository, branch)):
            self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(self.hub.files(repository, branch))
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        self.hub.repositories[repository][branch].append(files)
        self.hub.messages.append(header["summary"])
        head = self.hub.head(repository, branch)
        self._answer(200, {"commitUrl": f"{self.hub.url}/{repository}/commit/{head}", "commitOid": head})

    def _resolve(self, content: bytes, commit: str) -> None:
        total, part, status = len(content), content, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            part = content[int(found[1]) : int(found[2]) + 1 if found[2] else None]
            status = 206
        headers = {"ETag": f'"{sha1(content)}"', "X-Repo-Commit": commit, "X-Linked-Size": str(total)}
        self._answer(status, part, headers=headers)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    blob = sha1(b"blob %d\0" % len(content) + content)
    if not is_large(content):
        return {**entry, "oid": blob}
    digest = hashlib.sha256(content).hexdigest()
    return {**entry, "oid": digest, "lfs": {"oid": digest, "size": len(content), "pointerSize": 130}}


@contextmanager
def run_hub() -> Iterator[Hub]:
    """Runs a hub on this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
