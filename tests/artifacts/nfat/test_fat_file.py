"""A fat `.pte` is opened with its named data, wherever that is."""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.nfat.contents import Blob, Description, Extent, Manifest, Payload, Source
from pteforge.artifacts.nfat.fat_file import BACKEND_ID, is_fat, open_fat
from pteforge.artifacts.nfat.named_data import FlatTensor, PtdNamedData, PtdSegment, ptd_named_data
from pteforge.artifacts.nfat.pack import pack_v2
from pteforge.artifacts.nfat.v2 import write_v2
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import FileFormatError, InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*migrating-from-legacy.*:DeprecationWarning"  # ExecuTorch's serializers read their schemas so
)

_WEIGHTS = {digest_bytes(each): each for each in (bytes(range(256)) * 8, bytes(range(255)) * 9)}
_PAYLOADS = {"xnnpack": b"".join(_WEIGHTS.values()), "portable": list(_WEIGHTS.values())[1]}


def _container(inline: bytes = b"") -> bytes:
    first, second = (Blob(digest, len(each)) for digest, each in _WEIGHTS.items())
    xnnpack = (Extent(0, first.size, Source.BLOB), Extent(first.size, second.size, Source.BLOB, 0, 1))
    portable = (Extent(0, second.size, Source.BLOB, 0, 1),)
    payloads = tuple(
        Payload(Description(name), len(content), digest_bytes(content), extents)
        for (name, content), extents in zip(_PAYLOADS.items(), (xnnpack, portable), strict=True)
    )
    return write_v2(Manifest(payloads, (first, second)), inline)


def _outer(
    containers: dict[str, bytes], named: dict[str, bytes], *, segments: bool = True, backend=BACKEND_ID, calls: int = 1
) -> bytes:
    """A program whose methods are one delegate call each, or so many, by ExecuTorch's own serializer."""
    from executorch.exir import schema
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    plans = []
    for index, name in enumerate(containers):
        reference = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, index)
        call = schema.Instruction(schema.DelegateCall(0, []))
        plans.append(
            schema.ExecutionPlan(
                name=name,
                container_meta_type=schema.ContainerMetadata("", ""),
                values=[],
                inputs=[],
                outputs=[],
                chains=[schema.Chain([], [], [call] * calls, None)],
                operators=[],
                delegates=[schema.BackendDelegate(backend, reference, [])],
                non_const_buffer_sizes=[0],
            )
        )
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
    """Where the fat file goes."""
    return tmp_path / "fat.pte"


@pytest.mark.parametrize("segments", [True, False])
def test_blobs_in_the_file(path, segments):
    """The delegate's data is the container, in a segment or in the flatbuffer; named data are its blobs."""
    path.write_bytes(_outer({"forward": _container()}, _WEIGHTS, segments=segments))
    fat = open_fat(path)
    assert is_fat(fat.outer)
    assert [method.name for method in fat.outer.methods] == ["forward"]
    assert {payload.name: fat.container.rebuild(payload) for payload in fat.container.payloads} == _PAYLOADS


def test_blobs_in_another_file(path):
    """Blobs may be in a `.ptd`, all or some; without it, those payloads that need it say so."""
    first, second = _WEIGHTS
    path.write_bytes(_outer({"forward": _container()}, {second: _WEIGHTS[second]}))
    weights = path.with_name("weights.ptd")
    weights.write_bytes(_ptd({first: _WEIGHTS[first]}))
    container = open_fat(path, [weights]).container
    assert {payload.name: container.rebuild(payload) for payload in container.payloads} == _PAYLOADS
    alone = open_fat(path).container
    assert alone.rebuild(alone.payload("portable")) == _PAYLOADS["portable"]
    with pytest.raises(FileFormatError, match=f"needs the blob {first}.*ptd"):
        alone.rebuild(alone.payload("xnnpack"))


def test_several_methods_share_a_container(path):
    """All methods have one container; two different ones would be two models in one file."""
    path.write_bytes(_outer({"encode": _container(), "decode": _container()}, _WEIGHTS))
    assert len(open_fat(path).container.payloads) == 2
    path.write_bytes(_outer({"encode": _container(), "decode": _container(b"other")}, _WEIGHTS))
    with pytest.raises(FileFormatError, match="different containers"):
        open_fat(path)


def test_fat_files_are_no_payloads():
    """A payload that is a fat file, whatever it is called, is refused: the runtime would not run it."""
    fat = _outer({"forward": _container()}, _WEIGHTS)
    with pytest.raises(InputError, match="payload inner is a fat file itself, and those do not nest"):
        pack_v2([(Description("inner"), fat)])


def test_plain_files_are_not_fat(path):
    """A `.pte` without the delegate is named as what it is; so is one whose delegate has no container."""
    plain = _outer({"forward": b"x"}, {}, backend="XnnpackBackend")
    assert not is_fat(read_pte(plain))
    path.write_bytes(plain)
    with pytest.raises(FileFormatError, match=r"fat\.pte: not a fat \.pte: .*XnnpackBackend"):
        open_fat(path)
    path.write_bytes(_outer({"forward": b"other bytes"}, {}))
    with pytest.raises(FileFormatError, match=r"fat\.pte: not an NFAT container"):
        open_fat(path)


def test_parts_of_methods(path):
    """A file in which parts of a method have a container is no fat file: what that computes is not the method."""
    path.write_bytes(_outer({"forward": _container()}, _WEIGHTS, calls=2))
    assert not is_fat(read_pte(path.read_bytes()))
    with pytest.raises(FileFormatError, match=r"fat\.pte: not a fat \.pte: only parts of the methods \['forward'\]"):
        open_fat(path)
    with pytest.raises(InputError, match="payload inner is a fat file itself, and those do not nest"):
        pack_v2([(Description("inner"), path.read_bytes())])


def test_files_that_cannot_be_read(path):
    """Missing, empty and foreign files are errors that name the file."""
    with pytest.raises(InputError, match=r"fat\.pte: cannot be read: No such file"):
        open_fat(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"fat\.pte: the file is empty"):
        open_fat(path)
    path.write_bytes(b"text, not a program")
    with pytest.raises(FileFormatError, match=r"fat\.pte: not a \.pte"):
        open_fat(path)
    path.write_bytes(_outer({"forward": _container()}, _WEIGHTS))
    foreign = path.with_name("weights.ptd")
    foreign.write_bytes(path.read_bytes())
    with pytest.raises(FileFormatError, match=r"weights\.ptd: not a \.ptd"):
        open_fat(path, [foreign])


def test_ptd_files_come_back():
    """Every key of a `.ptd` has its bytes."""
    named = {"a": b"x" * 1000, "weight": b"y" * 3, "ü": bytes(5000)}
    found = ptd_named_data(memoryview(_ptd(named)))
    assert {key: bytes(content) for key, content in found.items()} == named


def test_damaged_ptd_files():
    """Changed or shortened `.ptd` files are read within their bounds or refused."""
    content = _ptd({"a": b"x" * 100, "b": b"y" * 50})
    chance = random.Random(3)  # noqa: S311 - the same files each time
    refused = 0
    for _ in range(5000):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 2, 4))):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del changed[chance.randrange(len(changed)) :]
        try:
            found = ptd_named_data(memoryview(changed))
        except FileFormatError:
            refused += 1
        else:
            assert all(len(each) <= len(changed) for each in found.values())
    assert 500 < refused < 5000


def test_damaged_fat_files(path):
    """Whatever is changed in a fat file, it is opened or refused, and what is opened is verified or refused."""
    good = _outer({"forward": _container()}, _WEIGHTS)
    chance = random.Random(4)  # noqa: S311 - the same files each time
    opened = verified = 0
    for _ in range(1000):
        content = bytearray(good)
        for _ in range(chance.choice((1, 2, 4))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        with contextlib.suppress(FileFormatError):
            container = open_fat(path).container
            opened += 1
            for payload in container.payloads:
                with contextlib.suppress(FileFormatError):
                    assert digest_bytes(container.rebuild(payload)) == payload.sha256
                    verified += 1
    assert 100 < verified < 2 * opened


@pytest.mark.parametrize(
    ("table", "slots"),
    [("FlatTensor", FlatTensor), ("DataSegment", PtdSegment), ("NamedData", PtdNamedData)],
)
def test_ptd_slots_are_the_installed_ones(table, slots):
    """What is read of a `.ptd` stands where the schema of the installed ExecuTorch says."""
    root = Path(next(iter(find_spec("executorch").submodule_search_locations)))
    text = (root / "extension" / "flat_tensor" / "serialize" / "flat_tensor.fbs").read_text()
    text = re.sub(r"//.*", "", text)
    fields = re.findall(r"(\w+)\s*:", re.search(rf"table {table} \{{([^}}]*)\}}", text)[1])
    assert {slot.name.lower(): slot.value for slot in slots}.items() <= {
        name: index for index, name in enumerate(fields)
    }.items()
    assert 'file_identifier "FT01"' in text
