"""Targets that this machine cannot lower for say exactly why, and what to do."""

import platform
import re
import subprocess
import sys
from importlib.util import find_spec
from shutil import which

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import base, find_target
from pteforge.tasks.targets.base import missing_packages

INSTALL = "pip install 'pteforge"
NO_WHEELS = "no wheels for Python 3.1[4-9]"

# name, required module or program, part of the reason
VENDORS = [
    ("cuda", "nvidia-smi", "the program nvidia-smi.*Nvidia GPU and the CUDA toolkit"),
    ("ethos_u", "ethosu", rf"ethosu.*({INSTALL}\[ethos-u\]'|{NO_WHEELS})"),
    ("mediatek", "mtk_converter", "the Python module mtk_converter.*NeuroPilot Express SDK"),
    ("metal", "xcrun", "macOS and the program xcrun; .*mlx and coreml"),
    ("nxp", "eiq_neutron_sdk", "the Python module eiq_neutron_sdk; pip install .*eiq-neutron-sdk"),
    ("vgf", "model_converter", rf"model_converter.*({INSTALL}\[vgf\]'|{NO_WHEELS})"),
]


def reason(name: str) -> str | None:
    return type(find_target(name)).available()


@pytest.mark.parametrize(
    ("name", "needs", "tells"),
    [
        *VENDORS,
        # Where no installation helps, the reason says what to use instead.
        ("samsung", None, "Exynos AI LiteCore.*from source"),
    ],
)
def test_what_is_missing_is_named(name, needs, tells):
    """A target without its compiler names it, and where it comes from."""
    assert (needs and (find_spec(needs) or which(needs))) or re.search(tells, reason(name))


@pytest.mark.parametrize("name", [name for name, _, _ in VENDORS])
def test_nothing_is_missing_where_all_is_there(name, tmp_path, monkeypatch):
    """With modules and programs of the right names in place, only the system can still be wrong."""
    arm = ("ethosu", "tosa_serializer", "model_converter")
    for module in (*arm, "mtk_converter", "mtk_neuron", "eiq_neutron_sdk", "triton"):
        (tmp_path / f"{module}.py").touch()
    for program in ("nvcc", "nvidia-smi", "xcrun"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacking = {
        "metal": "this machine lacks macOS; ",
        "vgf": "Arm's model converter needs glibc 2.38",
        "cuda": "PyTorch",
    }
    said = reason(name)
    assert said is None or said.startswith(lacking[name])
    assert (name, sys.platform) != ("metal", "linux") or said


@pytest.mark.parametrize(
    ("name", "options", "wrong"),
    [
        ("ethos_u", {"accelerator": "ethos-u85-2048", "extra_flags": ["-v"]}, {"accelerator": "ethos-u99"}),
        ("mediatek", {"platform": "mt6993"}, {"platform": "mt1"}),
        ("nxp", {"fetch_constants_to_sram": True}, {"fetch_constants_to_sram": "perhaps"}),
        ("samsung", {"chipset": "E9965"}, {"chipset": "e9955"}),
        ("vgf", {"tosa_spec": "TOSA-1.0+FP", "compiler_flags": ["--x"]}, {"compiler_flags": "--x"}),
        ("qnn", {"soc": "SM8750"}, {"soc": "sm8650"}),
    ],
)
def test_options(name, options, wrong):
    """Options are checked on every machine: zoo files are also written where nobody lowers."""
    assert options is None or find_target(name, options) != find_target(name)
    with pytest.raises(TargetError, match=f"options of target '{name}'"):
        find_target(name, wrong)


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


def test_says_where_an_extra_has_no_wheels(monkeypatch):
    """Where its markers leave nothing of an extra, installing it is no way out: the system is named instead."""
    before = f"python_version < '{sys.version_info[0]}.{sys.version_info[1]}'"
    listed = ["a; extra == 'some'", f"b; {before} and extra == 'some'", f"c; {before} and extra == 'none'", "d>=1"]
    monkeypatch.setattr(base, "requires", {"pteforge": listed}.get)
    assert missing_packages("nothing", extra="some").endswith(": pip install 'pteforge[some]'")
    reason = missing_packages("nothing", extra="none")
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.system()} for {platform.machine()}"
    assert f"there are no wheels for {python}" in reason
    assert "pip install" not in reason


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
