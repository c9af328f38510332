"""Lowers a model with each given name of torch or ExecuTorch taken away in turn; prints what came of it, as JSON.

Each is tried in a process of its own, which is forked after torch and ExecuTorch were imported.
"""

import json
import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner  # noqa: F401 - see above
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer  # noqa: F401 - see above
from executorch.exir import to_edge_transform_and_lower  # noqa: F401 - see above
from executorch.runtime import Runtime  # noqa: F401 - see above
from pteforge.errors import ToolchainError

RECIPES = ("portable-fp32", "xnnpack-fp32", "xnnpack-int8-static")


def outcome(path: str, folder: Path) -> dict[str, str]:
    """What comes of each recipe without a name: "made", or the error; and what `doctor` says under "doctor"."""
    from pteforge.tasks.upstream import compat

    os.environ[compat.WITHOUT] = path
    from pteforge.artifacts.local_store import LocalStore
    from pteforge.configs.recipe_lookup import load_preset
    from pteforge.tests.lowering import ZOO, Stages

    sys.path.insert(0, str(ZOO))

    results = {}
    for recipe in RECIPES:
        try:
            stages = Stages(LocalStore.open(folder / "store"), folder, {})
            stages.lower("builders:conv_net", load_preset(recipe).recipe.model_dump(mode="json", exclude_unset=True))
            results[recipe] = "made"
        except ToolchainError as error:
            results[recipe] = f"refused: {error}"
        except Exception as error:  # noqa: BLE001 - what the test is about
            traceback.print_exception(error, limit=-4)
            results[recipe] = f"{type(error).__name__}: {error}"
    return results


def main(paths: list[str]) -> None:
    logging.disable()
    torch.set_num_threads(1)
    for path in paths:
        read, write = os.pipe()
        if pid := os.fork():
            os.close(write)
            with os.fdopen(read) as file:
                results = file.read()
            _, status = os.waitpid(pid, 0)
            sys.stdout.write(
                json.dumps({"path": path, "status": status, "results": json.loads(results or "{}")}) + "\n"
            )
            sys.stdout.flush()
            continue
        os.close(read)
        with tempfile.TemporaryDirectory() as folder, os.fdopen(write, "w") as file:
            json.dump(outcome(path, Path(folder)), file)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
