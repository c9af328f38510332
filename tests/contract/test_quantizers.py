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


# A target that inherits its quantizer has the one that is tested.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AVAILABLE if "quantizer" in vars(find_target_class(name))])
def test_quantizes_and_lowers(name, tmp_path):
    """What it quantizes its target takes, and quantizing again gives the same program, and the same file.

    Equal files are not asked of a target that says it is not reproducible.
    """
    made = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        path = os.pathsep.join([str(BODIES), *filter(None, [os.environ.get("PYTHONPATH")])])
        finished = subprocess.run(
            [sys.executable, BODIES / "quantize_network.py", name, folder],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert finished.returncode == 0, finished.stderr[-4000:]
        made.append(json.loads(finished.stdout.splitlines()[-1]))
    target = find_target_class(name)
    assert made[0]["quantized"] > 0
    assert made[0]["backends"] == sorted(target.backends)
    assert made[0]["program"] == made[1]["program"]
    if target.reproducible:
        assert made[0] == made[1]
