"""MLX lowers with modules made on the spot, and its payloads do not depend on where a model's source is."""

import importlib

import pytest
from pteforge.tasks.targets import find_target

SOURCE = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * torch.tensor([1.0, 2.0, 3.0])) + 1
"""


@pytest.mark.slow
def test_source_is_not_in_the_payload(lower_for, operators, tmp_path, monkeypatch):
    """The same model from another file, with other lines before it, gives the same bytes; all of it is delegated."""
    import torch

    assert type(find_target("mlx")).available() is None  # the wheel has everything that it needs
    (tmp_path / "scaled_one.py").write_text(SOURCE)
    (tmp_path / "scaled_other.py").write_text("# a comment\n" + SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    one, other = (
        lower_for("mlx", importlib.import_module(name).Scaled(), torch.ones(2, 3))
        for name in ("scaled_one", "scaled_other")
    )
    assert one == other
    assert operators(one) == set()
