"""A `.pte` file as an array in a C header, for firmware, which has no file system to load it from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...artifacts.digest import digest_bytes

ALIGNMENT = 16
"""The alignment of the array in bytes: `Program::kMinimumAlignment` of ExecuTorch's runtime/executor/program.h."""

_PER_LINE = 20


def c_header(content: bytes, name: str, memory: Iterable[tuple[str, int]]) -> str:
    """The header of a file's content; `memory` has the bytes of planned memory that each method needs.

    The array's name is that of the file, with underscores for what is no letter or digit. Valid C11 and C++11.
    """
    symbol = re.sub(r"\W", "_", name, flags=re.ASCII)
    symbol = f"_{symbol}" if symbol[:1].isdigit() else symbol
    lines = (", ".join(map(str, content[at : at + _PER_LINE])) for at in range(0, len(content), _PER_LINE))
    planned = "".join(
        f"#define {symbol}_{re.sub(r'[^a-zA-Z0-9_]', '_', method)}_memory {size} // bytes of planned memory\n"
        for method, size in memory
    )
    return (
        f"// {name}, SHA-256 {digest_bytes(content)}. Written by pteforge.\n\n"
        f"#ifndef {symbol}_h\n#define {symbol}_h\n\n#include <stddef.h>\n\n"
        f"#define {symbol}_size {len(content)} // bytes\n{planned}\n"
        f"#ifdef __cplusplus\nalignas({ALIGNMENT})\n#else\n_Alignas({ALIGNMENT})\n#endif\n"
        f"static const unsigned char {symbol}[{symbol}_size] = {{\n" + ",\n".join(lines) + "\n};\n\n#endif\n"
    )
