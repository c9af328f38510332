"""What a plain `.pte` keeps outside, and whether a `.ptd` file has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import FileFormatError, InputError
from ..pte.contents import PteFile
from .named_data import map_file, ptd_places

_SHOWN = 3
_DIGEST_KEYS = {"XnnpackBackend", "VulkanBackend"}
"""Backends that name weights by their SHA-256, in clear text in the delegate (executorch 1.5.1): XNNPACK in
backends/xnnpack/operators/node_visitor.py, Vulkan in backends/vulkan/serialization/vulkan_graph_builder.py."""
_KEY = re.compile(rb"(?:scale_)?[0-9a-f]{64}")


def check_data_file(file: Path, pte: PteFile, data: Path | None) -> None:
    """Checks that a file's weights are where it looks for them, as far as it says where that is.

    XNNPACK in executorch 1.5.1 crashes where a program has no named data at all and a delegate looks for some.

    Args:
        file: the `.pte`.
        pte: what it says.
        data: the `.ptd` that it is to be loaded with.

    Raises:
        InputError: there is none, or it is another file's; as FileFormatError where it is damaged.
    """
    wanted = kept_outside(file, pte)
    if data is None:
        if wanted:
            names = ", ".join(map(repr, sorted(wanted)[:_SHOWN])) + (", ..." if len(wanted) > _SHOWN else "")
            raise InputError(
                f"{file} keeps {len(wanted)} weights in a .ptd file ({names}), and there is none: put it beside the "
                f"file, as {file.with_suffix('.ptd').name}, or name it"
            )
        return
    try:
        sizes = {key: size for key, _, size in ptd_places(map_file(data))}
    except FileFormatError as error:
        raise FileFormatError(f"{data}: {error}") from error
    for name, size in wanted.items():
        if name not in sizes:
            raise InputError(f"{data} does not belong to {file}: it has no {name!r}")
        if size not in (None, sizes[name]):
            raise InputError(f"{data} does not belong to {file}: its {name!r} has {sizes[name]} bytes, and not {size}")


def kept_outside(file: Path, pte: PteFile) -> dict[str, int | None]:
    """The keys under which a plain file looks for weights in a `.ptd`, with their sizes where it says those.

    Tensors of kernels are looked up by name, what XNNPACK and Vulkan want by digest; other backends tell nobody.
    """
    found: dict[str, int | None] = {tensor.name: tensor.nbytes for tensor in pte.external}
    inside = {named.key for named in pte.named_data}
    found |= {key: None for key in _delegates_keys(file, pte) if key not in inside}
    return found


def may_keep_outside(file: Path, pte: PteFile) -> bool:
    """Whether a plain file's weights can be in a `.ptd`: it says so, or its backend may look for them by a name."""
    return bool(kept_outside(file, pte) or (set(pte.backends) - _DIGEST_KEYS and not pte.named_data))


def _delegates_keys(file: Path, pte: PteFile) -> Iterator[str]:
    places = {
        (delegate.offset, delegate.size)
        for method in pte.methods
        for delegate in method.delegates
        if delegate.id in _DIGEST_KEYS
    }
    content = map_file(file) if places else memoryview(b"")
    for offset, size in sorted(places):
        for key in _KEY.findall(content[offset : offset + size]):
            yield key.decode()
