"""Lowers models with names of ExecuTorch taken away, or with patches switched off; prints what came of it, as JSON.

`python without.py names PATH...` lowers one model with each name taken away in turn, `python without.py patches` the
smallest case of each patch with and without it. Each is tried in a process of its own, which is forked after torch and
ExecuTorch were imported.
"""

import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner  # noqa: F401 - see above
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer  # noqa: F401 - see above
from executorch.exir import to_edge_transform_and_lower  # noqa: F401 - see above
from executorch.runtime import Runtime  # noqa: F401 - see above

ZOO = Path(__file__).parents[2] / "zoo"
RECIPES = ("portable-fp32", "xnnpack-fp32", "xnnpack-int8-static")


def tried(builder: str, recipe: Mapping[str, Any], folder: Path) -> str:
    """``made`` and the digest of the file, or the error."""
    from pteforge.artifacts.digest import digest_bytes
    from pteforge.artifacts.local_store import LocalStore
    from pteforge.errors import PteforgeError
    from pteforge.tests.lowering import Stages

    try:
        made = Stages(LocalStore.open(folder / "store"), folder, {}).lower(builder, recipe)
        return f"made {digest_bytes(made.file)}"
    except PteforgeError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - torch's and ExecuTorch's
        traceback.print_exception(error, limit=-4)
        return f"{type(error).__name__}: {error}"


def in_fork(environment: Mapping[str, str], cases: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """What came of each case in a new process; a number if that died."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read()
        _, status = os.waitpid(pid, 0)
        return json.loads(said) if said else dict.fromkeys(cases, f"died: {status}")
    os.close(read)
    os.environ.update(environment)
    with tempfile.TemporaryDirectory() as folder, os.fdopen(write, "w") as file:
        results = {name: tried(*case, Path(folder) / str(n)) for n, (name, case) in enumerate(cases.items())}
        if not all(result.startswith("made") for result in results.values()):
            from pteforge.tasks.lowering.toolchain import describe

            results["doctor"] = str(describe())
        json.dump(results, file)
    os._exit(0)


def tell(subject: str, results: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps({"subject": subject, "results": results}) + "\n")
    sys.stdout.flush()


def main(kind: str, *paths: str) -> None:
    logging.disable()
    torch.set_num_threads(1)
    sys.path.insert(0, str(ZOO))
    if kind == "names":
        from pteforge.configs.recipe_lookup import load_preset
        from pteforge.tasks.upstream.compat import WITHOUT

        cases = {
            name: ("builders:conv_net", load_preset(name).recipe.model_dump(mode="json", exclude_unset=True))
            for name in RECIPES
        }
        for path in paths:
            tell(path, in_fork({WITHOUT: path}, cases))
        return
    from smallest import CASES

    for name in paths or CASES:
        case = {name: (f"smallest:{name}", CASES[name])}
        tell(
            name,
            {
                key: in_fork({"PTEFORGE_UPSTREAM_OFF": off}, case)[name]
                for key, off in (("with", ""), ("without", name))
            },
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
