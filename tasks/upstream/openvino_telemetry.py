"""nncf and openvino report their use to Intel through the package openvino_telemetry; with this patch they do not.

Both are written to work without that package. For openvino 2025 and nncf 3.2; delete once reporting is off by default.
"""

from __future__ import annotations

import sys


def disable_openvino_telemetry() -> None:
    """Makes openvino_telemetry fail to import in this process; call it before openvino or nncf is imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: importing it fails
