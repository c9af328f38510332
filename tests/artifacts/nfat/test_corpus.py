"""The checked-in containers are accepted or refused as they should be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.nfat.container import read_container
from pteforge.errors import FileFormatError

_HERE = Path(__file__).parent


def _load():
    spec = importlib.util.spec_from_file_location("make_corpus", _HERE / "make_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_CORPUS = _load()
_CASES = list(_CORPUS.cases())


def _file(case) -> Path:
    return _CORPUS.CORPUS / ("bad" if case.problem else "good") / f"{case.name}.nfat"


def _blobs() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (_CORPUS.CORPUS / "blobs").iterdir()}


def test_the_files_are_the_cases():
    """Each case is checked in as it is made now, and no file lacks its case: readers in other languages rely on it."""
    assert {_file(case): case.content for case in _CASES} == {
        path: path.read_bytes() for folder in ("good", "bad") for path in (_CORPUS.CORPUS / folder).iterdir()
    }
    assert all(digest_bytes(content) == key for key, content in _blobs().items())


@pytest.mark.parametrize("case", [case for case in _CASES if not case.problem], ids=lambda case: case.name)
def test_good_containers(case):
    """They are read, and all payloads that need no extension have their digests."""
    container = read_container(case.content, _blobs())
    for payload in container.payloads:
        if payload.features:
            with pytest.raises(FileFormatError, match="needs extensions"):
                container.verify(payload)
        else:
            container.verify(payload)
            assert len(container.rebuild(payload)) == payload.size


@pytest.mark.parametrize("case", [case for case in _CASES if case.problem], ids=lambda case: case.name)
def test_bad_containers(case):
    """They are refused before any payload is used, for the reason they were made for."""
    with pytest.raises(FileFormatError) as caught:
        read_container(case.content, _blobs())
    assert case.problem in str(caught.value)


def test_unloadable_payloads():
    """Containers are accepted whose payloads break runtimes: version 1 says nothing of what is in payloads."""
    paths = sorted((_CORPUS.CORPUS / "unloadable").glob("*.nfat"))
    assert len(paths) >= 2
    for path in paths:
        container = read_container(path.read_bytes())
        assert [len(container.rebuild(payload)) for payload in container.payloads] == [
            payload.size for payload in container.payloads
        ]


def test_mutated_containers():
    """What a fuzzer made, one file for each way to be refused, still is refused."""
    paths = sorted((_CORPUS.CORPUS / "mutated").glob("*.nfat"))
    assert len(paths) > 30
    for path in paths:
        with pytest.raises(FileFormatError):
            read_container(path.read_bytes(), _blobs())
