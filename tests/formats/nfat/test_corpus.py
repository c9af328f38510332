"""The reader accepts or refuses the checked-in containers as intended."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.nfat.container import pack_v1, read_container
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
            assert len(b"".join(container.verified(payload))) == payload.size


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
        assert all(len(b"".join(container.verified(payload))) == payload.size for payload in container.payloads)


def test_mutated_containers():
    """Containers that a fuzzer found, one for each reason to refuse them, are refused."""
    paths = sorted((CORPUS / "mutated").glob("*.nfat"))
    assert len(paths) > 30
    for path in paths:
        with pytest.raises(FileFormatError):
            read_container(path.read_bytes(), _blobs())


_IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        *(([backend_id], "cannot be a backend id") for backend_id in ("", "two words", "ümlaut", "nul\0", "A" * 33)),
        (["A"] * 65, "65 payloads"),
    ],
)
def test_invalid_ids(ids, problem):
    """Ids are printable ASCII without blanks, of at most 32 characters, and no more of them than readers accept."""
    with pytest.raises(InputError, match=problem):
        pack_v1([(backend_id, b"x") for backend_id in ids])


@given(st.lists(st.tuples(_IDS, st.binary(max_size=200)), max_size=8))
def test_round_trip(entries):
    """Every payload comes back under its id, in order; only `portable` needs no backend."""
    container = read_container(pack_v1(entries))
    assert container.version == 1
    assert [(payload.name, b"".join(container.verified(payload))) for payload in container.payloads] == entries
    for payload in container.payloads:
        assert payload.description.backends == (() if payload.name == "portable" else (payload.name,))
        container.verify(payload)
