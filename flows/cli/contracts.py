"""`pteforge contract` and `check`: what files need of the runtime that loads them, and whether one has it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError, PteforgeError, printable, runtime_reasons
from ..reports.figures_text import format_runtimes, memory_header
from .inspect import delivered_of
from .options import AS_JSON, DATA, argument, flag, option
from .terminal import print_json
from .weights import data_files, open_fat_file, pte_files

if TYPE_CHECKING:
    from ...formats.contract import Contract


def print_contract(
    paths: Annotated[
        list[str], argument(".pte files, folders of such, contract files, or releases (URL#RELEASE).", "PATH...")
    ],
    *,
    as_yaml: Annotated[bool, flag("--yaml", "Print selected_operators.yaml of ExecuTorch's selective build.")] = False,
    as_cmake: Annotated[bool, flag("--cmake", "Print CMake for ExecuTorch's selective build.")] = False,
    as_header: Annotated[
        bool, flag("--header", "Print a C++ header with the memory that methods take: planned and measured on places.")
    ] = False,
    diff: Annotated[
        bool, flag("--diff", "Show what NEW needs that OLD does not, for two paths; exit with 1 if anything.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Show what a runtime must have to load files: operators with their kernels, backends, libraries of kernels."""
    from ...formats.contract import Contract, describe_key

    if as_yaml + as_cmake + as_header + (as_json or diff) > 1:
        raise InputError("--yaml, --cmake and --header are forms: give one of them, without --json and --diff")
    if as_header:
        files = pte_files(map(Path, paths))
        typer.echo(memory_header(delivered_of(file, data_files(file, None)) for file in files))
        return
    if diff:
        _print_additions(paths, as_json=as_json)
        return
    contracts = {name: contract for path in paths for name, contract in _contracts(path)}
    whole = next(iter(contracts.values())) if len(contracts) == 1 else Contract.union(contracts.values())
    if as_yaml:
        import yaml

        typer.echo(yaml.safe_dump(whole.selected_operators(list(contracts)), default_flow_style=False), nl=False)
    elif as_cmake:
        typer.echo("\n".join(_cmake(whole, list(contracts))))
    elif as_json:
        print_json(whole.described())
    else:
        for operator, keys in whole.operators.items():
            typer.echo(printable(f"{operator}: {'; '.join(map(describe_key, keys))}"))
        typer.echo(printable(f"libraries to link: {', '.join(whole.libraries) or 'none'}"))
        typer.echo(printable(f"backends: {', '.join(whole.backends) or 'none'}"))
        if len(contracts) == 1:
            typer.echo(format_runtimes(whole.runtimes))


def _contracts(text: str) -> Iterator[tuple[str, Contract]]:
    """The contracts of a file, folder or release, each with the name of its file; raises InputError without one."""
    from ...configs.contract_file import read_contract
    from ...formats.contract import Contract, read_needs
    from ..releases.records import names_release
    from ..releases.releases import open_release

    path = Path(text)
    if names_release(text):
        releases, name = open_release(text)
        for stem, released in releases.manifest(name).files:
            if (contract := released.result.contract) is None:
                raise InputError(f"{stem} of the release {name} has no contract: an older pteforge made it")
            yield f"{text}/{stem}.pte", contract
    elif path.suffix == ".pte" or path.is_dir():
        for file in pte_files([path]):
            yield (text if file == path else str(file)), Contract.of(read_needs(file, data_files(file, None)))
    else:
        runtime = read_contract(path)
        if runtime.operators is None:
            raise InputError(f"{text} includes all operators, so that it does not say what files need")
        yield text, Contract(runtime.operators, runtime.backends or ())


def _print_additions(paths: Sequence[str], *, as_json: bool) -> None:
    from ...formats.contract import Contract, additions, describe_key, kernel_libraries
    from ...tasks.lowering.model import find_runtime

    if len(paths) != 2:
        raise InputError("--diff takes two paths: OLD, what the app was built for, and NEW")
    old, new = paths
    if Path(old).is_file() and not old.endswith(".pte"):
        runtime = find_runtime(old)
        operators, backends = runtime.operators, runtime.backends
    else:
        before = Contract.union(contract for _, contract in _contracts(old))
        operators, backends = dict(before.operators), before.backends
    added = additions(Contract.union(contract for _, contract in _contracts(new)), operators, backends)
    if as_json:
        print_json(added.described())
    else:
        linked = kernel_libraries(operators or ())
        lines = [f"backend {name}" for name in added.backends]
        lines += [f"library {name}" for name in kernel_libraries(added.operators) if name not in linked]
        lines += [f"{name} for {describe_key(key)}" for name, keys in added.operators.items() for key in keys]
        typer.echo(printable("\n".join(lines or [f"{new} needs nothing that {old} has not"]), keep="\n"))
    if backends is None:
        typer.echo(f"note: {printable(old)} does not say which backends the app has", err=True)
    if added.operators or added.backends:
        raise typer.Exit(1)


_TARGETS = {
    "CoreMLBackend": "coremldelegate",
    "EthosUBackend": "executorch_delegate_ethos_u",
    "MLXBackend": "mlxdelegate",
    "NfatBackend": "nfat_backend",
    "OpenvinoBackend": "openvino_backend",
    "QnnBackend": "qnn_executorch_backend",
    "VgfBackend": "vgf_backend",
    "VulkanBackend": "vulkan_backend",
    "XnnpackBackend": "xnnpack_backend",
    "custom_ops": "custom_ops",
}
"""Backend or library to its target in CMake (executorch 1.5.1); that of NfatBackend is in `runtime/`."""

_SELECTED = {
    "portable_ops_lib": ("FUNCTIONS_YAML", "kernels/portable/functions.yaml", "portable_kernels"),
    "quantized_ops_lib": ("CUSTOM_OPS_YAML", "kernels/quantized/quantized.yaml", "quantized_kernels"),
}
"""Library to the option and file that declare its operators, and the library of its kernels."""


def _cmake(contract: Contract, files: Sequence[str]) -> Iterator[str]:
    """Calls of tools/cmake/Codegen.cmake, executorch 1.5.1, whose functions select dtypes for one plain file only."""
    from ...formats.contract import kernel_libraries

    if odd := [name for name in contract.operators if not re.fullmatch(r"[\w:.]+", name)]:
        raise InputError(f"{odd[0]!r} is not the name of an operator")  # it could be CMake code
    yield "# In a project with ExecuTorch 1.5.1 as a subdirectory, ${EXECUTORCH_ROOT}, after tools/cmake/Codegen.cmake."
    plain = len(files) == 1 and Path(files[0]).is_file() and "NfatBackend" not in contract.backends
    linked, others = list[str](), list[str]()
    for name in (*contract.backends, *kernel_libraries(contract.operators)):
        if name not in _SELECTED:
            (linked if name in _TARGETS else others).append(_TARGETS.get(name, name))
            continue
        declared, yaml, kernels = _SELECTED[name]
        operators = ",".join(operator for operator in contract.operators if kernel_libraries([operator]) == [name])
        dtypes = ' DTYPE_SELECTIVE_BUILD "ON"' if plain and kernels == "portable_kernels" else ""
        source = f'OPS_FROM_MODEL "{Path(files[0]).resolve()}"' if dtypes else f'ROOT_OPS "{operators}"'
        library = f'LIB_NAME "selected_{name}"'
        yield f"gen_selected_ops({library} {source}{dtypes})"
        yield f'generate_bindings_for_kernels({library} {declared} "${{EXECUTORCH_ROOT}}/{yaml}"{dtypes})'
        yield f"gen_operators_lib({library} KERNEL_LIBS {kernels} DEPS executorch_core{dtypes})"
        linked.append(f"selected_{name}")
    yield "# What to link into the app, each as a whole archive."
    yield f"set(PTEFORGE_LIBRARIES {' '.join(linked)})"
    if others:
        yield printable(f"# And the libraries of {', '.join(others)}.")


def check_file(
    file: Annotated[Path, argument("A .pte file.")],
    *,
    runtime: Annotated[
        str, option("A contract file, or a release of ExecuTorch, such as 1.4.", "CONTRACT|RELEASE", False)
    ],
    python: Annotated[
        Path | None, option("Open the file there: an interpreter with that release.", "PYTHON", False)
    ] = None,
    data: DATA = None,
    as_json: AS_JSON = False,
) -> None:
    """Check whether a runtime can load a file; exit with 1 if it cannot, naming operators, dtypes and methods.

    Lines of the model are named in files of recipes with `debug: true`.
    """
    from ...formats.contract import fat_problems, judge, read_needs
    from ...tasks.lowering.model import find_runtime

    chosen = find_runtime(runtime)
    if python and not chosen.release:
        raise InputError("--python is for releases: name one with --runtime, such as 1.4")
    needs = read_needs(file, data_files(file, data))
    judged = judge(needs, chosen.release, chosen.operators, chosen.backends)
    problems, notes, how = list(judged.problems), list(judged.notes), "derived" if chosen.release else "contract"
    if python:
        failed, notes = _open_there(python, chosen.release, file, data)
        problems, how = [*fat_problems(needs, chosen.release), *failed], "run"
    if not chosen.release and chosen.backends is None:
        notes.append(f"{chosen.name} does not say which backends the runtime has")
    if as_json:
        verdict = {"file": str(file), "runtime": chosen.name, "how": how, "loads": not problems}
        print_json({**verdict, "problems": problems, "notes": notes})
        raise typer.Exit(1 if problems else 0)
    for note in notes:
        typer.echo(printable(note), err=True)
    name = f"ExecuTorch {chosen.name} ({how})" if chosen.release else chosen.name
    if problems:
        raise PteforgeError("\n  ".join([f"{file} cannot be loaded by {name}:", *problems]))
    typer.echo(printable(f"{file} can be loaded by {name}"))


_PROBE = """
import contextlib, json, sys
from executorch.runtime import Runtime
from executorch.version import __version__
for module in ("executorch.kernels.quantized", "executorch.extension.llm.custom_ops.custom_ops"):
    with contextlib.suppress(Exception):
        __import__(module)
runtime, failed, skipped = Runtime.get(), [], []
for name, (path, backends) in json.loads(sys.argv[1]).items():
    if lacks := sorted(set(backends) - set(runtime.backend_registry.registered_backend_names)):
        skipped.append(f"{name}not opened: the runtime lacks {', '.join(lacks)}")
        continue
    try:
        program = runtime.load_program(path)
        for method in program.method_names:
            program.load_method(method)
    except (RuntimeError, KeyError) as error:
        failed.append(f"{name}{error}")
print("\\n" + json.dumps([__version__, failed, skipped]))
"""


def _open_there(python: Path, release: str, file: Path, data: list[Path] | None) -> tuple[list[str], list[str]]:
    """Opens a file, or each payload of a fat one, in another interpreter; returns failures, and what it cannot run."""
    from ...formats.nfat.container import is_fat
    from ...formats.pte.reader import open_pte
    from ...runtime.selection import scratch_folder

    with scratch_folder() as folder:
        programs = {"": file}
        if is_fat(open_pte(file)):
            container, programs = open_fat_file(file, data).container, {}
            for index, payload in enumerate(container.payloads):
                programs[f"payload {payload.name}: "] = folder / f"{index}.pte"
                container.write(payload, folder / f"{index}.pte")
        elif data_files(file, data):
            raise InputError(f"{file} keeps weights in a .ptd file, which --python does not open")
        files = json.dumps({name: (str(path), open_pte(path).backends) for name, path in programs.items()})
        try:
            done = subprocess.run(  # noqa: S603 - the user's interpreter
                [python, "-W", "ignore", "-c", _PROBE, files], capture_output=True, encoding="utf-8", check=False
            )
            version, failed, skipped = json.loads((done.stdout.splitlines() or [""])[-1])
        except OSError as error:
            raise InputError(f"{python} cannot be started: {error.strerror}") from error
        except ValueError as error:
            problem = (done.stderr.strip().splitlines() or [""])[-1]
            raise PteforgeError(f"{python} ended with {done.returncode} when it opened {file}: {problem}") from error
    if not version.startswith((f"{release}.", f"{release}+")):
        raise InputError(f"{python} has ExecuTorch {version}, and not {release}")
    if len(skipped) == len(programs):
        raise InputError(f"{python} cannot open {file}: {'; '.join(skipped)}")
    return failed + [*runtime_reasons(done.stderr)] * bool(failed), skipped
