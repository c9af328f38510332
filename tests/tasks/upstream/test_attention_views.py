"""Views of what attention returns, which ExecuTorch's decomposition lays out in another way."""

import pytest
from pteforge.tests.lowering import lower_upstream, recipe


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_views(lower, target):
    """The file is verified, although ExecuTorch by itself fails with the program."""
    asked = recipe(target)
    with pytest.raises(ValueError, match="Cannot view a tensor"):
        lower_upstream("builders:heads", asked)
    lower("builders:heads", asked)
