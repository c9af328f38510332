"""Lowers networks for targets, with their quantizers or without; prints the results by target as JSON.

Arguments: `lower`, `compare` or `quantize`, a folder, and the targets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from executorch.runtime import Runtime
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.targets import find_target
from pteforge.tests.lowering import Stages, lower_upstream, recipe

# Older Core ML has no int8.
OPTIONS = {"coreml": {"minimum_deployment_target": "iOS17", "take_over_mutable_buffers": False}}
NETWORKS = ("builders:conv_net", "builders:stack")


def lower(name: str, stages: Stages) -> dict[str, object]:
    """Lowers two networks, up to verification if this machine has the backends."""
    target = find_target(name)
    registry = Runtime.get().backend_registry
    last = None if all(map(registry.is_available, target.backends)) else "serialize"
    one, other = target.partitioners(), target.partitioners()
    files = [stages.lower(network, _recipe(name), until=last).file for network in NETWORKS]
    return {
        "backends": [read_pte(file).backends for file in files],
        "files": [digest_bytes(file) for file in files],
        "partitioners": len(one),
        "new partitioners": all(a is not b for a, b in zip(one, other, strict=True)),
    }


def compare(name: str, stages: Stages) -> dict[str, object]:
    """Lowers the networks, also with ExecuTorch's public call."""
    upstream = [digest_bytes(bytes(lower_upstream(network, _recipe(name)).buffer)) for network in NETWORKS]
    return lower(name, stages) | {"upstream": upstream}


def _recipe(name: str) -> dict[str, Any]:
    return recipe(name, verify={"min_sqnr_db": 30.0}, fold_batch_norms=False)  # upstream leaves folding to backends


def quantize(name: str, stages: Stages) -> dict[str, object]:
    """Quantizes and lowers a network, up to the file."""
    made = recipe({"target": name, "options": OPTIONS.get(name, {})}, quantize={"quantizer": name})
    lowered = stages.lower("builders:conv_net", made, until="serialize")
    nodes = lowered.program("quantize/forward").graph.nodes
    return {
        "backends": read_pte(lowered.file).backends,
        "file": digest_bytes(lowered.file),
        "program": lowered.outputs["quantize/forward"]["program"].identity,
        "quantized": sum("quantize" in str(node.target) for node in nodes),
    }


if __name__ == "__main__":
    task, folder, *names = sys.argv[1:]
    run = {"lower": lower, "compare": compare, "quantize": quantize}[task]
    stages = Stages(LocalStore.open(Path(folder, "store")), Path(folder))
    print(json.dumps({name: run(name, stages) for name in names}))  # noqa: T201
