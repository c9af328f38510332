"""Opening a fat `.pte` and its named data."""

import contextlib
import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.nfat.container import is_fat, open_fat, write_v2
from pteforge.formats.nfat.contents import BACKEND_ID, Blob, Description, Manifest, MappedExtent, Payload, Source
from pteforge.formats.nfat.pack import pack_v2
from pteforge.formats.pte.ptd import ptd_named_data
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.mutations import mutate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*migrating-from-legacy.*:DeprecationWarning"  # ExecuTorch's serializers read their schemas so
)

_WEIGHTS = {digest_bytes(each): each for each in (bytes(range(256)) * 8, bytes(range(255)) * 9)}
_PAYLOADS = {"xnnpack": b"".join(_WEIGHTS.values()), "portable": list(_WEIGHTS.values())[1]}


def _container(inline: bytes = b"") -> bytes:
    blobs = tuple(Blob(digest, len(content)) for digest, content in _WEIGHTS.items())
    last = (MappedExtent(0, blobs[1].size, Source.BLOB, 0, 1),)
    both = (MappedExtent(0, blobs[0].size, Source.BLOB), replace(last[0], position=blobs[0].size))
    payloads = tuple(
        Payload(Description(name), len(content), digest_bytes(content), extents)
        for (name, content), extents in zip(_PAYLOADS.items(), (both, last), strict=True)
    )
    return write_v2(Manifest(payloads, blobs), inline)


def _outer(
    containers: dict[str, bytes], named: dict[str, bytes], *, segments: bool = True, backend=BACKEND_ID, calls: int = 1
) -> bytes:
    """A program whose methods are `calls` delegate calls each, by ExecuTorch's serializer."""
    from executorch.exir import schema
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    plans = []
    for index, name in enumerate(containers):
        reference = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, index)
        call = schema.Instruction(schema.DelegateCall(0, []))
        chains = [schema.Chain([], [], [call] * calls, None)]
        delegates = [schema.BackendDelegate(backend, reference, [])]
        meta = schema.ContainerMetadata("", "")
        plans.append(schema.ExecutionPlan(name, meta, [], [], [], chains, [], delegates, [0]))
    inline = [schema.BackendDelegateInlineData(content) for content in containers.values()]
    program = schema.Program(0, plans, [schema.Buffer(b"")], inline, [], schema.SubsegmentOffsets(0, []))
    store = NamedDataStore()
    for key, content in named.items():
        store.add_named_data(key, content, alignment=128)
    pte = PTEFile(program, named_data=store.get_named_data_store_output())
    return bytes(serialize_pte_binary(pte, extract_delegate_segments=segments))


def _ptd(named: dict[str, bytes]) -> bytes:
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    entries = {key: DataEntry(index, 128, None) for index, key in enumerate(named)}
    return bytes(FlatTensorSerializer().serialize(DataPayload(list(named.values()), entries)))


@pytest.fixture(scope="module", autouse=True)
def _exir() -> None:
    """Imports the serializers once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it is imported
        import executorch.exir._serialize._program
        import executorch.extension.flat_tensor.serialize.serialize  # noqa: F401 - for others to use


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "fat.pte"


@pytest.mark.parametrize("segments", [True, False])
def test_blobs_in_the_file(path, segments):
    """The container may be in a segment or in the flatbuffer; named data are its blobs."""
    path.write_bytes(_outer({"forward": _container()}, _WEIGHTS, segments=segments))
    fat = open_fat(path)
    assert is_fat(fat.program)
    assert [method.name for method in fat.program.methods] == ["forward"]
    assert {payload.name: b"".join(fat.container.verified(payload)) for payload in fat.container.payloads} == _PAYLOADS


def test_blobs_in_another_file(path):
    """Some or all blobs may be in a `.ptd`, without which payloads that need them are refused."""
    first, second = _WEIGHTS
    path.write_bytes(_outer({"forward": _container()}, {second: _WEIGHTS[second]}))
    weights = path.with_name("weights.ptd")
    weights.write_bytes(_ptd({first: _WEIGHTS[first]}))
    container = open_fat(path, [weights]).container
    assert {payload.name: b"".join(container.verified(payload)) for payload in container.payloads} == _PAYLOADS
    alone = open_fat(path).container
    assert b"".join(alone.verified(alone.payload("portable"))) == _PAYLOADS["portable"]
    with pytest.raises(FileFormatError, match=f"needs the blob {first}.*ptd"):
        b"".join(alone.verified(alone.payload("xnnpack")))
    weights.write_bytes(path.read_bytes())
    with pytest.raises(FileFormatError, match=r"weights\.ptd: not a \.ptd"):
        open_fat(path, [weights])


def test_several_methods_share_a_container(path):
    """All methods have the same container; a file with two is refused."""
    path.write_bytes(_outer({"encode": _container(), "decode": _container()}, _WEIGHTS))
    assert len(open_fat(path).container.payloads) == 2
    path.write_bytes(_outer({"encode": _container(), "decode": _container(b"other")}, _WEIGHTS))
    with pytest.raises(FileFormatError, match="different containers"):
        open_fat(path)


def test_files_that_are_not_fat(path):
    """A `.pte` without the delegate, or one whose delegate has no container, is refused."""
    for fat, problem, content in (
        (False, r"not a fat \.pte: .*XnnpackBackend", _outer({"forward": b"x"}, {}, backend="XnnpackBackend")),
        (
            False,
            r"not a fat \.pte: only parts of .*'forward'",
            _outer({"forward": _container()}, _WEIGHTS, calls=2),
        ),
        (True, "not an NFAT container", _outer({"forward": b"other bytes"}, {})),
    ):
        assert is_fat(read_pte(content)) is fat
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=rf"fat\.pte: {problem}"):
            open_fat(path)


@pytest.mark.parametrize("calls", [1, 2])
def test_no_nesting(calls):
    """A fat file, or one that delegates parts of methods to a container, is refused as payload."""
    nested = _outer({"forward": _container()}, _WEIGHTS, calls=calls)
    with pytest.raises(InputError, match="payload inner is a fat file"):
        pack_v2([(Description("inner"), nested)])


def test_ptd_files_come_back():
    """Every key of a `.ptd` has its bytes."""
    named = {"a": b"x" * 1000, "weight": b"y" * 3, "ü": bytes(5000)}
    found = ptd_named_data(memoryview(_ptd(named)))
    assert {key: bytes(content) for key, content in found.items()} == named


def test_damaged_ptd_files():
    """Damaged `.ptd` files are read within their bounds or refused."""
    content = _ptd({"a": b"x" * 100, "b": b"y" * 50})
    chance = random.Random(3)  # noqa: S311 - the same files each time
    refused = 0
    for _ in range(5000):
        changed = mutate(content, chance)
        try:
            found = ptd_named_data(memoryview(changed))
        except FileFormatError:
            refused += 1
        else:
            assert all(len(each) <= len(changed) for each in found.values())
    assert 500 < refused < 5000


def test_damaged_fat_files(path):
    """A damaged fat file is opened or refused, and then its payloads are verified or refused."""
    good = _outer({"forward": _container()}, _WEIGHTS)
    chance = random.Random(4)  # noqa: S311 - the same files each time
    opened = verified = 0
    for _ in range(1000):
        path.write_bytes(mutate(good, chance))
        with contextlib.suppress(FileFormatError):
            container = open_fat(path).container
            opened += 1
            for payload in container.payloads:
                with contextlib.suppress(FileFormatError):
                    assert digest_bytes(b"".join(container.verified(payload))) == payload.sha256
                    verified += 1
    assert 100 < verified < 2 * opened
