"""Targets that this machine cannot lower for say exactly why, and what to do."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from shutil import which

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import find_target

# name, module or program without which it cannot lower, what the reason must tell
VENDORS = [
    ("cuda", "nvidia-smi", "the program nvidia-smi.*Nvidia GPU and the CUDA toolkit"),
    ("ethos_u", "ethosu", r"ethosu.*pip install 'pteforge\[ethos-u\]'"),
    ("mediatek", "mtk_converter", "the Python module mtk_converter.*NeuroPilot Express SDK"),
    ("metal", "xcrun", "macOS and the program xcrun; .*mlx and coreml"),
    ("nxp", "eiq_neutron_sdk", "the Python module eiq_neutron_sdk; pip install .*eiq-neutron-sdk"),
    ("vgf", "model_converter", r"model_converter.*pip install 'pteforge\[vgf\]'"),
]


def reason(name: str) -> str | None:
    """Why the target is not available here."""
    return type(find_target(name)).available()


@pytest.mark.parametrize(("name", "needs", "tells"), VENDORS)
def test_what_is_missing_is_told(name, needs, tells):
    """A target without its compiler names it, and where it comes from."""
    import re

    assert find_spec(needs) or which(needs) or re.search(tells, reason(name))


@pytest.mark.parametrize(("name", "needs", "tells"), VENDORS)
def test_nothing_is_missing_where_all_is_there(name, needs, tells, tmp_path, monkeypatch):
    """With modules and programs of the right names in place, what is left to tell is the system, or nothing."""
    del needs, tells
    for module in ("ethosu", "tosa_serializer", "model_converter", "mtk_converter", "mtk_neuron", "eiq_neutron_sdk"):
        (tmp_path / f"{module}.py").touch()
    (tmp_path / "triton.py").touch()
    for program in ("nvcc", "nvidia-smi", "xcrun"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    systems = {
        "metal": "this machine lacks macOS; ",
        "vgf": "Arm's model converter needs glibc 2.38",
        "cuda": "PyTorch",
    }
    said = reason(name)
    assert said is None or said.startswith(systems[name])
    assert (name, sys.platform) != ("metal", "linux") or said


@pytest.mark.parametrize(
    ("name", "tells"),
    [
        ("cadence", r"graph passes.*executorch\.backends\.cadence\.aot\.compiler"),
        ("cortex_m", r"graph passes.*CortexMPassManager"),
        ("qnn", "AI Engine Direct SDK.*to_edge_transform_and_lower_to_qnn"),
        ("samsung", "Exynos AI LiteCore.*from source"),
    ],
)
def test_what_cannot_be_had(name, tells):
    """Where no installation helps, the reason says what to use instead."""
    import re

    assert re.search(tells, reason(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "ethos_u",
            {"accelerator": "ethos-u85-2048", "memory_mode": "Sram_Only", "extra_flags": ["-v"]},
        ),
        ("mediatek", {"platform": "mt6993"}),
        ("nxp", {"platform": "imxrt700", "fetch_constants_to_sram": True}),
        ("samsung", {"chipset": "E9965"}),
        ("vgf", {"tosa_spec": "TOSA-1.0+FP", "compiler_flags": ["--x"]}),
    ],
)
def test_options(name, options):
    """Options are checked on every machine: zoo files are written where nobody lowers."""
    assert find_target(name, options) != find_target(name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ethos_u", {"accelerator": "ethos-u99"}),
        ("mediatek", {"platform": "mt1"}),
        ("samsung", {"chipset": "e9955"}),
        ("qnn", {"soc": "SM8650"}),
    ],
)
def test_wrong_options(name, options):
    """What there is not is refused."""
    with pytest.raises(TargetError, match=f"options of target '{name}'"):
        find_target(name, options)


@pytest.mark.parametrize("name", ["ethos_u", "nxp", "cortex_m"])
def test_integer_only(name):
    """What takes quantized operators only says so."""
    assert type(find_target(name)).quantized_only
