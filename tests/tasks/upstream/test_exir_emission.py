"""Results of ``cond``, remainders of integers, and tensors that an operator and a delegate use."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize import _serialize
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.exir.schema import Buffer, Program, SubsegmentOffsets
from functorch.experimental.control_flow import map as map_rows
from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.backend.emission import to_executorch
from pteforge.tasks.targets.find import find_target
from pteforge.tasks.upstream.exir_emission import MIN_SHARED, ViewedData, constants_once
from pteforge.tests.lowering import outputs_of, recipe
from pteforge.tests.zoo.networks import Function
from torch.utils import _pytree as pytree


def _lower(function: Any, *inputs: Any, target: str = "portable") -> tuple[bytes, bytes]:
    """The file, and that of ExecuTorch by itself."""
    partitioners = list(find_target(target, {}).partitioners())
    programs = [torch.export.export(Function(function), inputs) for _ in range(2)]  # each is changed
    managers = [to_edge_transform_and_lower(program, partitioner=partitioners) for program in programs]
    made = to_executorch(managers[0], ExecutorchBackendConfig())
    return bytes(made.buffer), bytes(managers[1].to_executorch().buffer)


def _choose(x: Any, condition: Any, chosen: Any = lambda v: v.sin() + 1, otherwise: Any = lambda v: v.cos()) -> Any:
    return torch.cond(condition.sum() > 0, chosen, otherwise, (x,))


def _choose_another(x: Any, condition: Any) -> Any:
    return _choose(x, condition, lambda v: v * v, lambda v: v - 5)


def siblings(x, y):
    """Two results that are added, the first of which is returned, too."""
    first = _choose(x, x)
    return first + _choose_another(y, y), first


def chained(x, y):
    """A result that the next operator takes."""
    return _choose(_choose(x, x), y, lambda v: v.sin() * v.cos() + v, lambda v: (v - 5) * v + 1)


def viewed(x, y):
    """A view of a result."""
    first = _choose(x, x).reshape(5, 4)
    return first, _choose_another(y, y)


def nested(x, y):
    """Two in a branch, and another one after that."""

    def inner(v, w):
        first = _choose(v, w)
        return first * _choose_another(w, v) + first

    outer = torch.cond(x.sum() > 0, inner, lambda v, w: v - w, (x, y))
    return outer + _choose(y, y)


def mapped(x, y):
    """A loop after it."""
    first = _choose(x, x)
    return first + map_rows(lambda row: row.sin() * row.cos() + row.exp(), y), first


def in_turn(x, y):
    """A result that is used up before the next one is made."""
    first = _choose(x, x).exp()
    return first + _choose_another(y, y)


MATRICES = (torch.ones(4, 5), torch.ones(4, 5))


def _is_right(content: bytes, function: Any) -> bool:
    """Whether a file gives what eager gives, whichever branches are taken."""
    generator = torch.Generator().manual_seed(0)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        inputs = tuple(sign * torch.rand(4, 5, generator=generator) for sign in signs)
        pairs = zip(outputs_of(content, *inputs), pytree.tree_leaves(function(*inputs)), strict=True)
        if not all(torch.allclose(made, expected, atol=1e-5) for made, expected in pairs):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("function", [siblings, chained, viewed, nested, mapped])
def test_results_stay(function, target):
    """The file gives what eager gives, whatever is delegated."""
    made, _ = _lower(function, *MATRICES, target=target)
    assert _is_right(made, function)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "target"),
    [(siblings, "portable"), (chained, "portable"), (nested, "portable"), (mapped, "portable"), (viewed, "xnnpack")],
)
def test_executorch_fails_by_itself(function, target):
    """Once this fails, so does the reason for `copy_results_of_cond`."""
    _, plain = _lower(function, *MATRICES, target=target)
    assert not _is_right(plain, function)


def test_results_that_are_used_up():
    """Nothing is copied where nothing is overwritten."""
    made, plain = _lower(in_turn, *MATRICES)
    assert made == plain
    assert _is_right(made, in_turn)


SIGNED = ["int8", "int16", "int32", "int64"]


def _operands(dtype: str) -> Any:
    """The extremes are such that a sum or a product with the divisor overflows int8."""
    dividends = [7, -7, 5, -5, 0, 100, -100, -128, 127, -128]
    divisors = [2, 2, -3, 3, 5, 120, 7, 7, -5, -1]
    return tuple(torch.tensor(values).to(getattr(torch, dtype)) for values in (dividends, divisors))


def _remainder(content: bytes, *inputs: Any) -> Any:
    (made,) = outputs_of(content, *inputs)
    return made.tolist()


@pytest.mark.parametrize("dtype", SIGNED)
def test_remainders_of_tensors(dtype):
    """They have the divisor's sign. Once ExecuTorch's by itself have it, the reason for the patch is gone."""
    operands = _operands(dtype)
    expected = (operands[0] % operands[1]).tolist()
    made, plain = _lower(lambda x, y: x % y, *operands)
    assert _remainder(made, *operands) == expected
    assert _remainder(plain, *operands) != expected


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("divisor", [3, -3])
def test_remainders_by_numbers(dtype, divisor):
    """As above, where the divisor is a number."""
    dividends, _ = _operands(dtype)
    made, plain = _lower(lambda x: x % divisor, dividends)
    assert _remainder(made, dividends) == (dividends % divisor).tolist()
    assert _remainder(plain, dividends) != (dividends % divisor).tolist()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_other_remainders_stay_the_same(dtype):
    """Of floating point numbers and of unsigned integers, the kernel computes what eager does."""
    operands = [operand.abs() for operand in _operands("int16")]
    operands = [operand.to(_operands(dtype)[0].dtype) for operand in operands]
    made, plain = _lower(lambda x, y: x % y, *operands)
    assert made == plain
    assert _remainder(made, *operands) == (operands[0] % operands[1]).tolist()


ALIGNMENTS = {"tied": 16, "again": 16, "wide": 256, "odd": 96, "own": 16, "small": 16}
SIZE = MIN_SHARED
BYTES = {"tied": b"t" * SIZE, "wide": b"w" * (SIZE + 1), "odd": b"x" * SIZE, "own": b"o" * SIZE, "small": b"s" * 999}
BYTES["again"] = BYTES["tied"]
CONSTANTS = (b"", b"c" * 24, BYTES["tied"], b"d" * SIZE, BYTES["small"], BYTES["wide"], BYTES["odd"])


@pytest.fixture
def made():
    """A file without methods that has constants and named data, some of them equal."""
    store = NamedDataStore()
    for key, content in BYTES.items():
        store.add_named_data(key, content, alignment=ALIGNMENTS[key])
    constants = [Buffer(content) for content in CONSTANTS]
    program = Program(0, [], constants, [], [], SubsegmentOffsets(0, []))
    with constants_once():
        return bytes(_serialize.serialize_pte_binary(PTEFile(program, None, store.get_named_data_store_output())))


def test_equal_bytes_are_written_once(made):
    """What is equal and large is there once, aligned as both uses of it ask for; all keys and constants are found."""
    counts = {key: made.count(content) for key, content in BYTES.items()}
    assert counts == {"tied": 1, "again": 1, "wide": 1, "odd": 2, "own": 1, "small": 2}
    pte = read_pte(made)
    segments = {named.key: pte.segments[named.segment] for named in pte.named_data}
    assert {key: segment.of(made) for key, segment in segments.items()} == BYTES
    assert all(segment.offset % 128 == 0 for segment in segments.values())
    assert (segments["wide"].offset - pte.segment_base) % 256 == 0
    assert {named.key for named in pte.named_data if named.segment in pte.inner_segments} == {"tied", "again", "wide"}
    read = deserialize_pte_binary(made)
    pairs = zip(read.program.constant_buffer, CONSTANTS, strict=True)
    assert all(found.storage.rstrip(b"\0") == content for found, content in pairs)  # it reads padding with each
    assert {
        key: read.named_data.buffers[entry.buffer_index] for key, entry in read.named_data.pte_data.items()
    } == BYTES


def test_a_tied_embedding(lower):
    """The kernels look words up in the weight that the backend multiplies with; the runtime finds it for both."""
    lowered = lower("builders:tied", recipe("xnnpack"))
    (weight,) = (tensor.detach().numpy().tobytes() for tensor in lowered.program("export").state_dict.values())
    pte = read_pte(lowered.file)
    assert lowered.file.count(weight) == 1
    assert pte.backends == ("XnnpackBackend",)
    assert [pte.segments[index].size for index in pte.inner_segments] == [len(weight)]


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_large_constants_are_those_of_upstream(target):
    """Constants that are not copied are written as upstream writes them: equal ones once, and views by themselves."""
    torch.manual_seed(0)
    matrix = torch.randn(256, 256)
    rows, columns = torch.randn(300, 256)[7:263], torch.randn(256, 256).t()
    made, plain = _lower(
        lambda x: (x @ matrix + matrix.clone()).sin() @ rows + columns, torch.randn(256, 256), target=target
    )
    assert made == plain
    assert made.count(matrix.numpy().tobytes()[:999]) == 1


def test_views_are_written_as_bytes_are(tmp_path: Path):
    """A view is a piece of a file like the bytes that it is of, and copies of what holds it share it."""
    content = bytes(range(256)) * 300
    view = ViewedData(memoryview(content))
    cord = Cord(b"first")
    for piece in (view, copy.deepcopy(view)):
        cord.append(piece)
    with (tmp_path / "written").open("wb") as file:
        cord.write_to_file(file)
    assert (tmp_path / "written").read_bytes() == bytes(cord) == b"first" + content * 2
    assert (len(view), view.prefix(300), view.to_bytes()) == (len(content), content[:300], content)
    assert view.sha256().hex() == digest_bytes(content)
    assert copy.deepcopy(view) is view
