"""Contracts of files against ExecuTorch's C++ runtime, which gets just their kernels, and its CMake functions."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pteforge
import pytest
import yaml
from executorch.codegen.tools.gen_oplist import gen_oplist
from pteforge.formats.contract import Contract, read_needs
from pteforge.formats.nfat.container import is_fat, open_fat
from pteforge.formats.pte.reader import open_pte

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

EXAMPLES = Path(pteforge.__file__).parent / "examples"


def plain_files(path: Path, folder: Path) -> list[tuple[Path, list[Path]]]:
    """The file, or the payloads of a fat one, with their `.ptd`: those that this machine can run."""
    data = [file for file in (path.with_suffix(".ptd"),) if file.exists()]
    if not is_fat(open_pte(path)):
        return [(path, data)]
    container = open_fat(path, data).container
    files = []
    for payload in container.payloads:
        container.write(payload, file := folder / f"{path.stem}-{payload.name}.pte")
        files.append((file, []))
    return files


def _runtime_key(key: str) -> str:
    """The key as ExecuTorch's runtime looks it up: without lists; empty for a call without tensors."""
    tensors = [one for one in key.partition("/")[2].split("|") if one and not one.startswith("[")]
    return f"v1/{'|'.join(tensors)}" if tensors else ""


@pytest.fixture
def check(sanitized) -> Callable[[Path, Sequence[Path]], int]:
    """Checks a plain file with just the kernels of its contract, and less each; returns how many they are.

    The program fails if a sanitizer reports anything.
    """

    def check(path: Path, data: Sequence[Path] = ()) -> int:
        (needs,) = read_needs(path)
        kernels = sorted({f"{call.operator} {_runtime_key(call.key)}".strip() for call in needs.calls})
        given = "".join(f"{kernel}\n" for kernel in kernels)
        command = [sanitized / "load_with_kernels", path, *data]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (path, done.stdout, done.stderr)
        lines = done.stdout.splitlines()
        methods, without = lines[: len(lines) - len(kernels)], lines[len(lines) - len(kernels) :]
        assert methods
        assert all(line.endswith(": Error::Ok") for line in methods), (path, methods)
        for kernel, line in zip(kernels, without, strict=True):
            operator, _, key = kernel.partition(" ")
            assert f": Error::OperatorMissing kernel '{operator}' not found." in line
            tensors = [tensor.split(";") for tensor in key.removeprefix("v1/").split("|") if tensor]
            said = "".join(
                f" dtype: {dtype} | dim order: [ {''.join(f'{each}, ' for each in order.split(',') if each)}]"
                for dtype, order in tensors
            )
            assert said in re.sub(r" +", " ", line), (kernel, line)
        return len(kernels)

    return check


@pytest.mark.parametrize("name", ["v2", "v2-dynamic", "v2-two-methods", "v2-state", "transposed", "halves"])
def test_just_the_contract(check, programs, tmp_path, name):
    """Each payload loads and runs with the kernels of its contract and no others, and not without any one of them."""
    counts = [check(path, data) for path, data in plain_files(programs / f"{name}.pte", tmp_path)]
    assert sum(counts) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("zoo", ["starter", "fat", "quantized", "encoder_decoder"])
def test_examples(check, tmp_path, zoo):
    """So does each file of the examples; and ExecuTorch's selective build would be told the same of it."""
    export = [Path(sys.executable).with_name("pteforge"), "export", EXAMPLES / "zoo" / f"{zoo}.yaml"]
    done = subprocess.run([*export, "--out", tmp_path / "out", "--store", tmp_path / "store"], check=False)
    assert done.returncode == 0
    checked = 0
    for made in sorted(tmp_path.glob("out/*/*.pte")):
        for path, data in plain_files(made, tmp_path):
            selected = tmp_path / "selected_operators.yaml"
            with contextlib.redirect_stdout(io.StringIO()):
                gen_oplist(selected, model_file_path=str(path))
            expected = yaml.safe_load(selected.read_text())
            assert Contract.of(read_needs(path)).selected_operators([str(path)]) == expected
            if set(open_pte(path).backends) <= {"XnnpackBackend"}:
                checked += 1 + check(path, data)
    assert checked > 10


STUBS = """
foreach(name gen_selected_ops generate_bindings_for_kernels gen_operators_lib)
  string(APPEND code "function(${name})
    cmake_parse_arguments(GEN \\"\\" \\"LIB_NAME;ROOT_OPS;OPS_FROM_MODEL;FUNCTIONS_YAML;CUSTOM_OPS_YAML;KERNEL_LIBS;"
    "DEPS;DTYPE_SELECTIVE_BUILD\\" \\"\\" \\${ARGN})
    if(GEN_UNPARSED_ARGUMENTS OR NOT GEN_LIB_NAME)
      message(FATAL_ERROR \\"${name}: \\${GEN_UNPARSED_ARGUMENTS}\\")
    endif()
    message(\\"${name}|\\${GEN_LIB_NAME}|\\${GEN_ROOT_OPS}|\\${GEN_FUNCTIONS_YAML}\\${GEN_CUSTOM_OPS_YAML}\\")
  endfunction()
  ")
endforeach()
cmake_language(EVAL CODE "${code}")
"""
"""Functions with the arguments of those in tools/cmake/Codegen.cmake of executorch 1.5.1."""


def test_cmake(run_here, programs, tmp_path):
    """CMake reads what `contract --cmake` prints, with the operators that ExecuTorch's tool selects for the file."""
    (_, portable) = plain_files(programs / "v2.pte", tmp_path)
    said = run_here(tmp_path, "contract", str(programs / "v2.pte"), "--cmake")
    assert said.code == 0
    script = tmp_path / "script.cmake"
    script.write_text(f'{STUBS}\nset(EXECUTORCH_ROOT "/et")\n{said.out}\nmessage("linked|${{PTEFORGE_LIBRARIES}}")\n')
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    selected, bindings, library, linked = [line.split("|") for line in done.stderr.splitlines()]
    with contextlib.redirect_stdout(io.StringIO()):
        gen_oplist(tmp_path / "from_model.yaml", model_file_path=str(portable[0]))
        gen_oplist(tmp_path / "from_cmake.yaml", root_ops=selected[2])
    made = [yaml.safe_load((tmp_path / f"from_{name}.yaml").read_text()) for name in ("model", "cmake")]
    assert made[0]["operators"].keys() == made[1]["operators"].keys()
    assert selected[1] == bindings[1] == library[1] == "selected_portable_ops_lib"
    assert bindings[3] == "/et/kernels/portable/functions.yaml"
    assert linked[1] == "nfat_backend;xnnpack_backend;selected_portable_ops_lib"
