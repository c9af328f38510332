"""What of a produced file can be run on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...artifacts.nfat.data_file import check_data_file
from ...artifacts.nfat.fat_file import is_fat, open_fat
from ...artifacts.pte.reader import open_pte
from ...errors import FileFormatError, VerificationFailed
from .loadable import Loadable
from .payload_run import missing_backends


def runnable_payloads(
    path: Path, data_files: Sequence[Path], not_run: dict[str, str]
) -> Iterator[tuple[str, Loadable]]:
    """What there is to run: a plain file without a name, or payloads of a fat one with theirs.

    Args:
        path: the file.
        data_files: its `.ptd` files; a plain one has one at most.
        not_run: gets the payloads that this machine has no backend for: why, by name.

    Raises:
        VerificationFailed: the file is damaged, or a plain one needs a backend that is not here.
        InputError: a `.ptd` file is missing or another file's; as FileFormatError where it is damaged.
    """
    try:
        pte = open_pte(path)
    except FileFormatError as error:
        raise VerificationFailed(str(error)) from error
    if not is_fat(pte):
        if missing := missing_backends(pte.backends):
            raise VerificationFailed(
                f"the file needs {', '.join(missing)}, which this machine's ExecuTorch runtime does not have, "
                "so nothing can be said of what it computes; as a specialization of a recipe with "
                "`output: {form: fat}` it can be delivered together with payloads that are verified"
            )
        data = next(iter(data_files), None)
        check_data_file(path, pte, data)
        yield "", Loadable(path, data)
        return
    container = open_fat(path, data_files).container
    for payload in container.payloads:
        content = container.rebuild(payload)  # the digest is checked, whether it can be run or not
        if missing := missing_backends(payload.description.backends):
            not_run[payload.name] = f"needs {', '.join(missing)}, which this machine's runtime does not have"
        else:
            yield payload.name, Loadable(content)
