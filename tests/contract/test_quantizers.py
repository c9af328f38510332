"""What every installed target with a quantizer keeps to, whoever brought it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.find import find_quantizer_options, find_target_class

BODIES = Path(__file__).parent / "bodies"
WITH_QUANTIZER = [name for name in target_names() if find_target_class(name).QuantizerOptions]
AVAILABLE = [name for name in WITH_QUANTIZER if find_target_class(name).available() is None]

# A target that inherits its quantizer has one that is tested.
OWN = [name for name in AVAILABLE if "quantizer" in vars(find_target_class(name))]


@pytest.mark.parametrize("name", WITH_QUANTIZER)
def test_options(name):
    """Quantizers have documented options, all with defaults, that are the same after JSON."""
    kind = find_target_class(name).QuantizerOptions
    options = kind()
    assert options.model_config["frozen"]
    assert options.model_config["extra"] == "forbid"
    assert kind.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options
    assert all(f" {field}: " in kind.__doc__ for field in kind.model_fields)


@pytest.mark.parametrize("name", WITH_QUANTIZER)
def test_unknown_options(name):
    """An option that there is not is refused with those that there are."""
    with pytest.raises(TargetError, match=rf"quantizer options of target '{name}': bitz: .*\(its options: \w+"):
        find_quantizer_options(name, {"bitz": 4})


@pytest.mark.parametrize("name", [name for name in WITH_QUANTIZER if name not in AVAILABLE])
def test_unavailable(name):
    """A quantizer whose packages this machine lacks is refused before any work starts, with what to do."""
    reason = find_target_class(name).available()
    with pytest.raises(TargetError, match=f"the quantizer of target '{name}' is not available here: ") as raised:
        find_quantizer_options(name)
    assert str(raised.value).endswith(reason)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> list[dict[str, dict[str, object]]]:
    """What two processes with other hash seeds made with each quantizer, by target."""
    results = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(BODIES), *filter(None, [os.environ.get("PYTHONPATH")])])
        finished = subprocess.run(
            [sys.executable, BODIES / "quantize_network.py", tmp_path_factory.mktemp(seed), *OWN],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-4000:]
        results.append(json.loads(finished.stdout.splitlines()[-1]))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_quantizes_and_lowers(name, made):
    """What it quantizes its target takes, and quantizing again gives the same program, and the same file.

    Equal files are not asked of a target that says it is not reproducible.
    """
    target = find_target_class(name)
    one, other = (each[name] for each in made)
    assert one["quantized"] > 0
    assert one["backends"] == sorted(target.backends)
    assert one["program"] == other["program"]
    if target.reproducible:
        assert one == other
