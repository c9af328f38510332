"""The reader accepts or refuses the checked-in containers as intended."""

from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError
from pteforge.formats.nfat.container import read_container
from pteforge.tests.formats.nfat import make_corpus
from pteforge.tests.formats.nfat.make_corpus import CORPUS

_CASES = list(make_corpus.cases())


def _file(case) -> Path:
    return CORPUS / ("bad" if case.problem else "good") / f"{case.name}.nfat"


def _blobs() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (CORPUS / "blobs").iterdir()}


def test_the_files_are_the_cases():
    """Each case is checked in as it is made now, and no file lacks its case: readers in other languages rely on it."""
    assert {_file(case): case.content for case in _CASES} == {
        path: path.read_bytes() for folder in ("good", "bad") for path in (CORPUS / folder).iterdir()
    }
    assert all(digest_bytes(content) == key for key, content in _blobs().items())


@pytest.mark.parametrize("case", [case for case in _CASES if not case.problem], ids=lambda case: case.name)
def test_good_containers(case):
    """They are read, and payloads that need no extension have their digests."""
    container = read_container(case.content, _blobs())
    for payload in container.payloads:
        if payload.unknown_features:
            with pytest.raises(FileFormatError, match="needs extensions"):
                container.verify(payload)
        else:
            container.verify(payload)
            assert len(container.rebuild(payload)) == payload.size


@pytest.mark.parametrize("case", [case for case in _CASES if case.problem], ids=lambda case: case.name)
def test_bad_containers(case):
    """They are refused before any payload is used, for the intended reason."""
    with pytest.raises(FileFormatError) as caught:
        read_container(case.content, _blobs())
    assert case.problem in str(caught.value)


def test_unloadable_payloads():
    """Containers whose payloads break runtimes are accepted: version 1 does not describe payloads."""
    paths = sorted((CORPUS / "unloadable").glob("*.nfat"))
    assert len(paths) >= 2
    for path in paths:
        container = read_container(path.read_bytes())
        assert all(len(container.rebuild(payload)) == payload.size for payload in container.payloads)


def test_mutated_containers():
    """Containers that a fuzzer found, one for each reason to refuse them, are refused."""
    paths = sorted((CORPUS / "mutated").glob("*.nfat"))
    assert len(paths) > 30
    for path in paths:
        with pytest.raises(FileFormatError):
            read_container(path.read_bytes(), _blobs())
