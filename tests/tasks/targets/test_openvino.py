"""OpenVINO's compiler comes with an extra; without it, the target says so."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.base import missing_packages


def test_says_what_to_install():
    """It is available where both packages are; otherwise the missing ones are named, and the extra that brings them."""
    missing = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    reason = type(find_target("openvino")).available()
    assert (reason is None) == (not missing)
    assert all(name in reason for name in missing)
    assert reason is None or reason.endswith("not installed: pip install 'pteforge[openvino]'")
    assert missing_packages("json", "email", extra="x") is None
    assert missing_packages("json", "nothing", extra="x") == "nothing is not installed: pip install 'pteforge[x]'"
    assert missing_packages("nothing", "nor_this", extra="x").startswith("nothing and nor_this are not installed")


def test_devices():
    """Devices go by OpenVINO's names; a malformed one is an error before any work starts."""
    for malformed in ("", "cpu", "GPU.", "CPU,GPU", "CPU\n"):
        with pytest.raises(TargetError, match="device: String should match pattern"):
            find_target("openvino", {"device": malformed})
    for known in ("CPU", "GPU", "GPU.1", "NPU"):
        assert find_target("openvino", {"device": known}).options.device == known


@pytest.mark.slow
def test_reports_nothing():
    """Whatever comes of making partitioners, the package that reports usage to Intel is not imported."""
    program = (
        "import sys\n"
        "from pteforge.tasks.targets import find_target\n"
        "try: print(*[spec.value for made in find_target('openvino').partitioners()\n"
        "             for spec in made.delegation_spec.compile_specs])\n"
        "except ImportError: print('not installed')\n"
        "import openvino_telemetry"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.strip() == ("b'CPU'" if type(find_target("openvino")).available() is None else "not installed")
    assert "ModuleNotFoundError: import of openvino_telemetry halted" in done.stderr
