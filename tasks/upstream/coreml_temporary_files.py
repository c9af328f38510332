"""Core ML's backend of executorch 1.5.1 leaves temporary files to the end of the process; with this patch it does not.

coremltools 9.0 removes its copies of the model, weights included, in functions that run at exit (models/model.py),
and stage processes end without running them. Delete once coremltools removes them as soon as a model is saved.
"""

from __future__ import annotations

import tempfile
from functools import wraps
from tempfile import TemporaryDirectory
from typing import Any

from executorch.backends.apple.coreml.compiler import CoreMLBackend


def remove_coreml_temporary_files() -> None:
    """Makes the backend remove its temporary files when it has compiled. Idempotent."""
    preprocess = CoreMLBackend.preprocess_multimethod
    if hasattr(preprocess, "__wrapped__"):
        return

    @wraps(preprocess)
    def call(edge_programs: Any, compile_specs: Any) -> Any:
        before = tempfile.tempdir
        with TemporaryDirectory(prefix="pteforge-coreml-", ignore_cleanup_errors=True) as folder:
            tempfile.tempdir = folder
            try:
                return preprocess(edge_programs, compile_specs)
            finally:
                tempfile.tempdir = before

    CoreMLBackend.preprocess_multimethod = staticmethod(call)
