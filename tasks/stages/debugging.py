"""What ExecuTorch's developer tools need to tell where in a model something on the device comes from."""

from __future__ import annotations

from collections.abc import Mapping

from executorch.devtools.etrecord import generate_etrecord
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchProgramManager

from ...artifacts.digest import canonical_json
from ...artifacts.programs.codec import load_program
from ...artifacts.ref import ArtifactRef
from ..stage import Workspace
from .by_method import by_method


def debug_artifacts(
    inputs: Mapping[str, ArtifactRef], emitted: ExecutorchProgramManager, work: Workspace
) -> dict[str, ArtifactRef]:
    """The artifacts of a payload.

    Args:
        inputs: `edge/<method>` of every method, as it was before it was partitioned; others do not count.
        emitted: the payload.
        work: where to read and write.

    Returns:
        - `etrecord` (debug/etrecord): the file that `executorch.devtools.Inspector` takes;
        - `debug_handles` (debug/handles): by method, instruction number to debug handles of the edge program;
        - `delegate_map` (debug/delegates): by method, instruction number to the delegate that it calls.
    """
    edge = {method: load_program(ref, work.store) for method, ref in by_method(inputs, "edge").items()}
    path = work.scratch / "model.etrecord"
    unchecked = EdgeCompileConfig(_check_ir_validity=False)  # `edge` has checked them
    generate_etrecord(path, EdgeProgramManager(edge, None, unchecked), emitted)
    store = work.store
    return {
        "etrecord": store.put_artifact("debug/etrecord", path.read_bytes()),
        "debug_handles": store.put_artifact("debug/handles", canonical_json(_plain(emitted.debug_handle_map))),
        "delegate_map": store.put_artifact("debug/delegates", canonical_json(_plain(emitted.delegate_map))),
    }


def _plain(value: object) -> object:
    """Maps with numbers as keys, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value
