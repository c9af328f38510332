"""Places as runs know them: how long a payload may take there."""

import pytest
from pteforge.configs.model import Limits
from pteforge.configs.places import PlaceConfig
from pteforge.tasks.verify.places import plan_place


@pytest.mark.parametrize(
    ("of_model", "written", "seconds"), [(3600.0, None, 600.0), (10.0, None, 10.0), (10.0, "2h", 7200.0)]
)
def test_time_limits(tmp_path, of_model, written, seconds):
    """A place that hangs is given up after ten minutes or the model's limit, or when it says itself."""
    place = plan_place("gpu", PlaceConfig(command="true", about="echo GPU", timeout=written), tmp_path)
    limits = place.limits(Limits(timeout=of_model, memory="1GiB"))
    assert (place.unreachable, limits.timeout, limits.memory) == ("", seconds, 1 << 30)
