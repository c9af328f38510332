"""The memory that a stage will probably need: what it took the last time, else by the size of its inputs."""

from __future__ import annotations

from ..artifacts.store import Store
from .runner import StageCall

_MIB = 1 << 20
_FLOOR = 128 * _MIB  # for what does not depend on the size of the model
_UNSEEN_MODEL = 1024 * _MIB  # of the stages that build a model whose size is not known yet
# Peak memory by the bytes of all inputs, where equal weights count once: `benchmarks/memory.py`, rounded up.
_FACTORS = {
    "edge": 0.25,
    "partition": 0.25,
    "preprocess": 0.75,
    "compile": 2.25,
    "serialize": 0.25,
    "report": 0.25,
    "verify": 3.5,
}
_UNMEASURED = 2.5


def predict_memory(call: StageCall, store: Store) -> int:
    """Bytes, at most the call's limit, since it is killed there. Reads the manifests of its inputs.

    Raises:
        StoreError: an input's manifest is gone or damaged, or the store cannot be used.
    """
    last = store.ledger.last_run(call.slot)
    predicted = last.peak_memory if last and last.peak_memory else _by_size(call, store)
    return min(predicted, call.limits.memory)


def _by_size(call: StageCall, store: Store) -> int:
    blobs = {blob for ref in call.inputs.values() for blob in store.objects_of(ref)}
    size = sum(blob.size for blob in blobs)
    if not blobs:  # it builds the model, or reads it from a file
        if call.program_file is None or not call.program_file.exists():
            return _UNSEEN_MODEL
        size = call.program_file.stat().st_size
    return _FLOOR + int(_FACTORS.get(call.stage.name, _UNMEASURED) * size)
