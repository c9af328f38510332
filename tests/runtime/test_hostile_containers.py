"""Malformed containers: the library's reader under sanitizers, against the reader of the package; its SHA-256."""

import hashlib
import random
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError
from pteforge.formats.nfat import slots_generated as slots
from pteforge.formats.nfat.container import read_container
from pteforge.formats.nfat.manifest import _Reader
from pteforge.formats.pte.tables import TableView
from pteforge.tests.mutations import mutate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_CORPUS = Path(__file__).parents[1] / "formats" / "nfat" / "corpus"

_COUNT = 3000
"""Mutations of each version."""

_LARGE = 4 << 20
_NAMED = {path.name: path.read_bytes() for path in (_CORPUS / "blobs").iterdir()}
_SOUND = {
    name: (_CORPUS / "good" / f"{name}.nfat").read_bytes() for name in ("v1-two-payloads", "v2-self-check", "v2-halves")
}


def _described(content: bytes) -> int:
    """How many bytes say what the others are."""
    version, count, inline = struct.unpack_from("<III", content, 4)
    return 12 + count * 48 if version == 1 else len(content) - inline


def _of_package(content: bytes) -> str:
    """The verdict of the package's reader, as open_containers words it."""
    try:
        container = read_container(content, _NAMED)
    except FileFormatError as error:
        return f"refused: {error}"
    found = []
    for payload in container.payloads:
        if payload.unknown_features:
            verdict = "unknown"
        elif payload.size > _LARGE:
            verdict = "large"
        else:
            try:
                content = b"".join(container.chunks(payload))
            except FileFormatError as error:
                verdict = "missing" if "needs the blob" in str(error) else "damaged"
            else:
                verdict = "intact" if payload.sha256 in (None, digest_bytes(content)) else "damaged"
        found += [payload.name, verdict]
    return " ".join(["accepted", *found])


def _differences(containers: Sequence[bytes], found: Sequence[str]) -> Mapping[bytes, tuple[str, str]]:
    differing = {}
    for content, library in zip(containers, found, strict=True):
        package = _of_package(content)
        if package != library and not (package.startswith("refused") and library.startswith("refused")):
            differing[content] = (package, library)
    return differing


@pytest.fixture
def only_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package's reader ignore methods and metadata, as the library does."""
    texts = _Reader._texts

    def texts_but_methods(self: _Reader, node: TableView, slot: IntEnum, most: int, longest: int) -> Iterator[str]:
        return iter(()) if slot == slots.Payload.METHODS else texts(self, node, slot, most, longest)

    monkeypatch.setattr(_Reader, "_texts", texts_but_methods)
    monkeypatch.setattr(_Reader, "_metadata", lambda *_: {})


@pytest.mark.usefixtures("only_what_runs")
@pytest.mark.parametrize("name", _SOUND)
def test_mutations(opened, name):
    """No sanitizer reports anything, and both readers come to the same verdict on every container."""
    sound, chance = _SOUND[name], random.Random(name)  # noqa: S311 - the same containers each time
    containers = [sound, *(mutate(sound, chance, _described(sound)) for _ in range(_COUNT))]
    found = [line.partition(" -> ")[0] for line in opened(containers, _NAMED)]
    assert found[0].startswith("accepted ")
    assert "damaged" not in found[0]
    assert _differences(containers, found) == {}
    verdicts = {line.split(" ", 1)[0] for line in found}
    assert verdicts == {"accepted", "refused:"}


@pytest.mark.parametrize("name", _SOUND)
def test_every_length(opened, name):
    """A container that is cut short anywhere, or continues after its end, is refused."""
    sound = _SOUND[name]
    containers = [sound[:size] for size in range(len(sound))] + [sound + b"\x01"]
    assert all(line.startswith("refused: ") for line in opened(containers, _NAMED))


def test_corpus(opened):
    """The library agrees with the corpus, and loads no payload that once broke a runtime."""
    verdicts = {"good": "accepted", "bad": "refused:", "mutated": "refused:", "unloadable": "accepted"}
    for kind, verdict in verdicts.items():
        paths = sorted((_CORPUS / kind).glob("*.nfat"))
        found = opened([path.read_bytes() for path in paths], _NAMED)
        assert {line.partition(" ")[0] for line in found} == {verdict}, kind
        assert len(found) == len(paths) > 0
        assert verdict == "refused:" or {" -> ", " damaged", " missing"}.isdisjoint(
            re.findall(r" -> | \w+", "".join(found))
        )


def test_digests(sanitized, tmp_path):
    """Digests of 0 to 300 bytes equal hashlib's, with portable code and with the processor's instructions."""
    content = random.Random(0).randbytes(300)  # noqa: S311  # the same bytes each time
    (tmp_path / "content").write_bytes(content)
    done = subprocess.run([sanitized / "hash_file", tmp_path / "content"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    digests = [hashlib.sha256(content[:size]).hexdigest() for size in range(len(content) + 1)]
    assert done.stdout.splitlines() == [f"{digest} {digest}" for digest in digests]
