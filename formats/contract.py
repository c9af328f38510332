"""What files need of the runtime that loads them: operators with their kernels, backends, libraries, a release.

The kernels of a program are those of its kernel calls. What delegates need of their backend is not known here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from ..artifacts.digest import Digest
from ..artifacts.records import Record
from ..errors import InputError
from .nfat.container import payload_start, pte_named_data, read_container
from .nfat.contents import BACKEND_ID
from .pte.contents import DTYPES, KernelCall
from .pte.ptd import ptd_named_data
from .pte.reader import map_file, naming, read_kernel_calls, read_pte

FORMAT: Literal[1] = 1

ANY_KERNEL = "default"
"""Stands for all keys: a kernel for all dtypes and dim orders. ExecuTorch's selective build calls it so."""

ANY_PRIM = "executorch_prim::*"  # in place of operators: all that `is_prim` knows

RELEASES = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
"""Releases of ExecuTorch; releases of fixes, such as 1.4.1, have the same operators."""

_SCHEMA = 0
"""Version of program.fbs in all of them; they ignore the optional fields that later ones added."""

_ADDED = {
    "1.1": (
        *("aten::bitwise_left_shift.Tensor_Scalar_out", "aten::bitwise_left_shift.Tensor_out"),
        *("aten::bitwise_right_shift.Tensor_Scalar_out", "aten::bitwise_right_shift.Tensor_out"),
        "aten::grid_sampler_2d.out",
    ),
    "1.2": ("aten::_conj_physical.out",),
    "1.3": ("aten::_adaptive_avg_pool2d.out", "aten::var_mean.correction_out"),
    "1.4": (
        *("et_copy::_d2h_copy.out", "et_copy::_h2d_copy.out"),
        *("executorch_prim::sym_int.Scalar", "executorch_prim::sym_ite.Scalar", "executorch_prim::sym_not.Scalar"),
        "llama::channelwise_gated_delta_rule.out",
    ),
    "1.5": ("llama::gated_delta_rule.out", "llama::quantized_moe_ffn.out"),
}
"""Operators by the release that added them, after 1.0. None was taken away.

From tags v1.0.0 to v1.4.1 of pytorch/executorch, and the wheels of 1.4.0 to 1.5.1: kernels/portable/functions.yaml,
kernels/quantized/quantized.yaml, kernels/prim_ops/register_prim_ops.cpp and extension/llm/custom_ops.
"""

_FAT_SINCE = "1.5"  # the release that `libnfat_backend` is built for (runtime/CMakeLists.txt)

_LIBRARIES = {
    "aten": "portable_ops_lib",
    "dim_order_ops": "portable_ops_lib",
    "quantized_decomposed": "quantized_ops_lib",
    "llama": "custom_ops",
}
"""The library of ExecuTorch's build that has a namespace's operators (CMakeLists.txt in kernels, executorch 1.5.1)."""

_PRIM = frozenset({"aten::_local_scalar_dense", "aten::sym_numel", "aten::sym_size.int"})


def is_prim(operator: str) -> bool:
    """Whether it is one of kernels/prim_ops/register_prim_ops.cpp, which every runtime has, unless it is cut down."""
    return operator in _PRIM or operator.startswith(("executorch_prim::", "et_copy::"))


def kernel_libraries(operators: Iterable[str]) -> list[str]:
    """Sorted names of the libraries of kernels to link for operators; one of an unknown namespace stands for itself."""
    others = {operator for operator in operators if not is_prim(operator)}
    return sorted({_LIBRARIES.get(operator.partition("::")[0], operator) for operator in others})


@dataclass(frozen=True, slots=True)
class Needs:
    """What one program needs; `payload` is the name of a payload, or empty for the file itself."""

    payload: str
    version: int
    backends: tuple[str, ...]
    calls: tuple[KernelCall, ...]


def read_needs(path: Path, data_files: Sequence[Path] = ()) -> tuple[Needs, ...]:
    """What a `.pte` and each payload in its fat delegates need; raises as `open_pte` and `open_fat`."""
    content = map_file(path)
    with naming(path):
        pte = read_pte(content)
        programs = [Needs("", pte.version, pte.backends, read_kernel_calls(content))]
        named = pte_named_data(content, pte)
    if BACKEND_ID not in pte.backends:
        return tuple(programs)
    for data_file in data_files:
        with naming(data_file):
            named |= ptd_named_data(map_file(data_file))
    delegates = (delegate for method in pte.methods for delegate in method.delegates)
    with naming(path):
        for extent in dict.fromkeys(delegate.extent for delegate in delegates if delegate.id == BACKEND_ID):
            blobs = {Digest(key): blob for key, blob in named.items()}
            container = read_container(extent.of(content), blobs)
            for payload in container.payloads:
                start = payload_start(container, payload)
                program = read_pte(start)
                programs.append(Needs(payload.name, program.version, program.backends, read_kernel_calls(start)))
    return tuple(programs)


@dataclass(frozen=True, slots=True)
class Contract(Record):
    """What a runtime must have to run everything in some files."""

    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # with overload -> keys, see `KernelCall`
    backends: tuple[str, ...] = ()
    schema_version: int = _SCHEMA
    payloads: Mapping[str, Contract] = field(default_factory=dict)  # of a fat file, by name; the rest is the union
    # release that opens the file -> ``run`` if the file was run there, or ``derived`` from operators and schema
    runtimes: Mapping[str, Literal["run", "derived"]] = field(default_factory=dict)

    @classmethod
    def of(cls, programs: Sequence[Needs], *, run_on: str = "") -> Self:
        """The contract of a file; `run_on` is the version of ExecuTorch that it was run on, if it was."""
        parts = []
        for program in programs:
            calls = [cls({call.operator: (call.key,)}) for call in program.calls]
            parts.append(cls.union([cls({}, program.backends, program.version), *calls]))
        payloads = {program.payload: part for program, part in zip(programs, parts, strict=True) if program.payload}
        ran = ".".join(run_on.split(".")[:2])
        # in Python, payloads of fat files run on releases that no device has `libnfat_backend` for
        opening = [
            name
            for name in RELEASES
            if not (fat_problems(programs, name) if name == ran else judge(programs, name).problems)
        ]
        runtimes: dict[str, Literal["run", "derived"]] = {name: "run" if name == ran else "derived" for name in opening}
        whole = cls.union(parts)
        return cls(whole.operators, whole.backends, whole.schema_version, payloads, runtimes)

    @classmethod
    def union(cls, contracts: Iterable[Contract]) -> Self:
        """What is needed for all of them; payloads and releases are those of single files."""
        keys, backends, version = defaultdict[str, set[str]](set), set[str](), _SCHEMA
        for contract in contracts:
            for operator, its_keys in contract.operators.items():
                keys[operator] |= set(its_keys)
            backends |= set(contract.backends)
            version = max(version, contract.schema_version)
        operators = {operator: tuple(sorted(keys[operator])) for operator in sorted(keys)}
        return cls(operators, tuple(sorted(backends)), version)

    @property
    def libraries(self) -> list[str]:
        """Libraries of kernels to link, and `libnfat_backend` where a file is fat."""
        return kernel_libraries(self.operators) + ["nfat_backend"] * (BACKEND_ID in self.backends)

    def described(self) -> dict[str, Any]:
        """JSON for users, which `configs.contract_file` reads again."""
        prim = [operator for operator in self.operators if is_prim(operator)]
        whole = {"format": FORMAT, **self.to_json(), "prim_operators": prim, "libraries": self.libraries}
        whole["payloads"] = {name: part.described() for name, part in self.payloads.items()}
        return {name: value for name, value in whole.items() if value or name not in ("payloads", "runtimes")}

    def selected_operators(self, files: Sequence[str]) -> dict[str, Any]:
        """``selected_operators.yaml``, as codegen/tools/gen_oplist.py of executorch 1.5.1 makes it of a plain file."""
        flags = {"is_root_operator": True, "is_used_for_training": True, "include_all_overloads": False}
        return {
            "operators": {name: {**flags, "debug_info": list(files)} for name in self.operators},
            "custom_classes": [],
            "build_features": [],
            "kernel_metadata": {},
            "include_all_non_op_selectives": False,
            "include_all_operators": False,
            "et_kernel_metadata": {
                name: sorted(set(map(selective_key, keys))) for name, keys in self.operators.items()
            },
        }


def selective_key(key: str) -> str:
    """The key as ExecuTorch's selective build has it, where lists of tensors look like tensors."""
    return key.replace("[", "").replace("]", "")


class Verdict(NamedTuple):
    """Why a runtime cannot load a file, if it cannot; notes are on payloads that it passes over."""

    problems: list[str]
    notes: list[str]


def judge(
    programs: Sequence[Needs],
    release: str = "",
    operators: Mapping[str, Collection[str]] | None = None,
    backends: Collection[str] | None = None,
) -> Verdict:
    """Whether a runtime can load a file: a release with all of its kernels, or one with certain kernels and backends.

    Devices pass over payloads for backends that the runtime lacks; all others have to load. None for operators or
    backends means that the runtime has all, or that they are unknown.
    """
    problems, notes, left = [], [], [program for program in programs if program.payload]
    for program in programs:
        of_payload = f"payload {program.payload}: " if program.payload else ""
        lacks = [] if backends is None else [name for name in program.backends if name not in backends]
        if lacks and program.payload:
            notes.append(f"{of_payload}passed over: the runtime lacks {', '.join(lacks)}")
            left.remove(program)
            continue
        problems += [f"{of_payload}it needs the backend {name}, which the runtime lacks" for name in lacks]
        if program.version > _SCHEMA:
            problems.append(f"{of_payload}its schema has version {program.version}, and releases read {_SCHEMA}")
        of_calls = _too_new(program.calls, release) if release else _missing(program.calls, operators)
        problems += [f"{of_payload}{problem}" for problem in of_calls]
    problems += fat_problems(programs, release)
    if not left and any(program.payload for program in programs):
        problems.append("the runtime has the backends of none of its payloads")
    return Verdict(problems, notes)


def fat_problems(programs: Sequence[Needs], release: str) -> list[str]:
    """Why a release cannot load a file because it is fat; empty if it can, or the file is none."""
    older = release in RELEASES[: RELEASES.index(_FAT_SINCE)]
    problem = f"libnfat_backend is made for ExecuTorch {_FAT_SINCE}: `pteforge extract` makes plain files of payloads"
    return [problem] if older and any(BACKEND_ID in program.backends for program in programs) else []


def check_release(name: str) -> str:
    """The release that a version such as ``1.4`` or ``1.4.1`` belongs to; raises InputError for an unknown one."""
    release = ".".join(name.split(".")[:2])
    if release not in RELEASES:
        raise InputError(f"{name} is not a known release of ExecuTorch; known are {RELEASES[0]} to {RELEASES[-1]}")
    return release


def _too_new(calls: Iterable[KernelCall], release: str) -> Iterator[str]:
    later = RELEASES[RELEASES.index(release) + 1 :]
    added = {operator: name for name in later for operator in _ADDED.get(name, ())}
    for operator, callers in _callers(call for call in calls if call.operator in added).items():
        yield f"{operator} {callers}: ExecuTorch has it since {added[operator]}"


def _missing(calls: Sequence[KernelCall], operators: Mapping[str, Collection[str]] | None) -> Iterator[str]:
    if operators is None:
        return
    lacking = [call for call in calls if not _has(operators, call.operator, call.key)]
    for operator, callers in _callers(lacking).items():
        has = f"has it for {'; '.join(map(describe_key, sorted(operators.get(operator, ()))))}"
        yield f"{operator} {callers}: the runtime {has if operator in operators else 'lacks the operator'}"


def _has(operators: Mapping[str, Collection[str]], operator: str, key: str) -> bool:
    keys = operators.get(ANY_PRIM if is_prim(operator) and ANY_PRIM in operators else operator, ())
    return ANY_KERNEL in keys or selective_key(key) in map(selective_key, keys)


def _callers(calls: Iterable[KernelCall]) -> dict[str, str]:
    """Operator to a description of how and where it is called."""
    kernels = defaultdict[tuple[str, str], list[str]](list)
    for call in calls:
        kernels[call.operator, call.key].append(f"method {call.method}" + f" at {call.line}" * bool(call.line))
    texts = defaultdict[str, list[str]](list)
    for (operator, key), callers in kernels.items():
        first, *others = dict.fromkeys(callers)
        texts[operator].append(f"for {describe_key(key)}, {first}" + f" and {len(others)} more" * bool(others))
    return {operator: "; ".join(parts) for operator, parts in texts.items()}


def describe_key(key: str) -> str:
    """A key in words, such as ``3 x float32(0,1)``: dtype and dim order of each tensor, equal ones together."""
    if key == ANY_KERNEL:
        return "all dtypes"
    tensors = Counter(selective_key(key).partition("/")[2].split("|"))
    return ", ".join(f"{number} x {_tensor(one)}" if number > 1 else _tensor(one) for one, number in tensors.items())


def _tensor(text: str) -> str:
    dtype, _, order = text.partition(";")
    names = {str(int(number)): known.name for number, known in DTYPES.items()}
    return f"{names.get(dtype, dtype)}({order})" if dtype else "no tensors"


def additions(
    new: Contract, operators: Mapping[str, Collection[str]] | None, backends: Collection[str] | None
) -> Contract:
    """What `new` needs and a runtime with these lacks; None stands for all, or for unknown ones."""
    kernels = {
        name: tuple(key for key in keys if operators is not None and not _has(operators, name, key))
        for name, keys in new.operators.items()
    }
    others = () if backends is None else tuple(name for name in new.backends if name not in backends)
    return Contract({name: keys for name, keys in kernels.items() if keys}, others)
