"""OpenVINO's compiler comes with an extra; without it, the target says so."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.packages import missing_packages


def test_says_what_to_install():
    """It is available where both packages are; otherwise the missing ones are named, and the extra that brings them."""
    missing = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    reason = type(find_target("openvino")).available()
    assert (reason is None) == (not missing)
    assert all(name in reason for name in missing)
    assert reason is None or reason.endswith("not installed: pip install 'pteforge[openvino]'")


def test_missing_packages():
    """Only what is missing is told, in good English."""
    assert missing_packages("json", "email", extra="x") is None
    assert missing_packages("json", "no_such_thing", extra="x") == (
        "no_such_thing is not installed: pip install 'pteforge[x]'"
    )
    assert missing_packages("no_such_thing", "nor_this", extra="x").startswith("no_such_thing and nor_this are not ")


@pytest.mark.parametrize("device", ["CPU", "GPU", "GPU.1", "NPU"])
def test_devices(device):
    """Devices go by OpenVINO's names."""
    assert find_target("openvino", {"device": device}).options.device == device


@pytest.mark.parametrize("device", ["", "cpu", "GPU.", "CPU,GPU", "CPU\n"])
def test_no_devices(device):
    """What cannot be a device is refused before any work starts."""
    with pytest.raises(TargetError, match="device: String should match pattern"):
        find_target("openvino", {"device": device})


def test_is_not_reproducible():
    """Two compilations need not give the same bytes, and the target says so."""
    assert not type(find_target("openvino")).reproducible


@pytest.mark.slow
def test_reports_nothing():
    """Whatever comes of making partitioners, the package that reports usage to Intel is not imported."""
    program = (
        "import sys\n"
        "from pteforge.tasks.targets import find_target\n"
        "try: print(*[spec.value for each in find_target('openvino').partitioners()\n"
        "             for spec in each.delegation_spec.compile_specs])\n"
        "except ImportError: print('not installed')\n"
        "import openvino_telemetry"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.strip() == ("b'CPU'" if type(find_target("openvino")).available() is None else "not installed")
    assert "ModuleNotFoundError: import of openvino_telemetry halted" in done.stderr
