"""MLX lowers with modules made on the spot, and its payloads do not depend on where a model's source is."""

from __future__ import annotations

import importlib.util

import pytest
from pteforge.tasks.targets import find_target

SOURCE = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * torch.tensor([1.0, 2.0, 3.0])) + 1
"""


def test_available():
    """The wheel has all that it takes."""
    assert type(find_target("mlx")).available() is None


@pytest.mark.slow
def test_source_is_not_in_the_payload(lower, operators, tmp_path):
    """The same model from another file, with other lines before it, gives the same bytes; all of it is delegated."""
    import torch

    made = []
    for name, text in (("one", SOURCE), ("other", "# a comment\n" + SOURCE)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made.append(lower("mlx", module.Scaled(), (torch.ones(2, 3),)))
    assert made[0] == made[1]
    assert operators(made[0]) == set()
