"""Runs methods of a file as `nfat_run` does, on the Python runtime of this environment's ExecuTorch.

`python -m pteforge.runtime.place [--data WEIGHTS.ptd] MODEL.pte METHOD [INPUT ...] [-- METHOD ...]`; inputs and
outputs are those of `runtime/host/nfat_run.cpp`. `--about` prints ExecuTorch's version, system and usable backends.
"""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import PteforgeError, printable
from ..formats.pte.contents import TensorSpec
from ..formats.pte.reader import open_pte
from .host import load
from .quiet import load_runtime

_FORMATS = {bool: "<?", int: "<q", float: "<d"}


def main(arguments: Sequence[str]) -> None:
    """Prints what it is asked for; ends with a message if a file does not load, or a call fails."""
    _leave_exir_out()
    if list(arguments) == ["--about"]:
        sys.stdout.write("".join(f"{line}\n" for line in _about()))
        return
    data = arguments[1:2] if arguments[:1] == ["--data"] else []
    path, *words = arguments[2 * len(data) :]
    if path.startswith("--"):
        sys.exit(f"{path} is an option of nfat_run, which ExecuTorch's Python runtime has nothing for")
    try:
        program = load(path, data_files=data)
        sys.stderr.write("".join(f"{line}\n" for line in program.report))
        signatures = {method.name: method for method in open_pte(Path(path)).methods}
        calls = [list(call) for separates, call in groupby(words, "--".__eq__) if not separates]
        for method, *inputs in calls:
            specs = signatures[method].inputs
            for value in program.run(method, [_input(*each) for each in zip(inputs, specs, strict=True)]):
                sys.stdout.buffer.write(_content(value))
    except PteforgeError as error:
        sys.exit(printable(str(error)))


def _leave_exir_out() -> None:
    """Makes `executorch.exir` an empty package: the runtime needs one small module of it, and all takes seconds."""
    executorch = find_spec("executorch")
    package = ModuleType("executorch.exir")
    package.__path__ = [f"{folder}/exir" for folder in (executorch and executorch.submodule_search_locations) or ()]
    sys.modules[package.__name__] = package


def _about() -> Iterator[str]:
    from executorch.runtime import Runtime  # noqa: PLC0415 - slow
    from executorch.version import __version__  # noqa: PLC0415 - as above

    load_runtime()
    yield f"ExecuTorch {__version__} of Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    registry = Runtime.get().backend_registry
    for name in registry.registered_backend_names:
        yield f"backend: {name}" if registry.is_available(name) else f"no device: {name}"


def _input(text: str, spec: Any) -> Any:
    """A tensor that was written as it lies in memory, ``SIZES:FILE``, or a number."""
    import torch  # noqa: PLC0415 - slow

    if not isinstance(spec, TensorSpec):
        return bool(int(text)) if spec.kind == "bool" else int(text) if spec.kind == "int" else float(text)
    sizes, _, file = text.partition(":")
    shape = [int(size) for size in sizes.split("x") if size]
    content = bytearray(Path(file).read_bytes())
    flat = torch.frombuffer(content, dtype=getattr(torch, spec.dtype)) if content else torch.empty(0)
    in_memory = flat.to(getattr(torch, spec.dtype)).reshape([shape[dimension] for dimension in spec.dim_order])
    return in_memory.permute([spec.dim_order.index(dimension) for dimension in range(len(shape))])


def _content(value: Any) -> bytes:
    """The elements of an output."""
    if hasattr(value, "numpy"):
        import torch  # noqa: PLC0415 - slow

        return bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if value.numel() else b""
    return struct.pack(_FORMATS[type(value)], value) if type(value) in _FORMATS else b""


if __name__ == "__main__":
    main(sys.argv[1:])
