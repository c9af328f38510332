"""The arithmetic of partitioned programs: counted by hand, with the partitioner's reason for what is left."""

import pytest
import torch
from executorch.exir import to_edge
from pteforge.tasks.backend.exir import to_partitioned_program
from pteforge.tasks.backend.work import work_of
from pteforge.tasks.results.delegation import NOT_TAKEN, MethodWork
from pteforge.tasks.results.delivered import Delivered
from pteforge.tasks.targets.find import find_target
from pteforge.tasks.upstream.exir import reasons_of_partitioners
from torch import nn


class Net(nn.Module):
    """Convolutions and a linear layer, which XNNPACK takes, and a mean and a sum that it does not."""

    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return torch.cumsum(self.linear(self.up(self.conv(x)).mean((2, 3))), 1)


@pytest.fixture(scope="module")
def work():
    """What is counted of the network above, on images of 6 by 6, for XNNPACK."""
    program = to_edge(torch.export.export(Net().eval(), (torch.randn(2, 4, 6, 6),))).exported_program()
    with reasons_of_partitioners() as reasons:
        partitioned = to_partitioned_program(program, find_target("xnnpack", {}).partitioners())
    return MethodWork.from_json({"payload": "", "method": "forward", **work_of(partitioned, reasons)})


def test_operations(work):
    """Multiplications and additions count two for convolutions and products; other operators have one per element."""
    conv, up, linear = 2 * (2 * 8 * 36) * (2 * 9), 2 * (2 * 8 * 36) * (4 * 4), 2 * (2 * 5) * 4
    mean, cumsum = 2 * 4 * 144, 2 * 5
    assert work.delegated == conv + up + linear + 5 * 4  # the weights of linear are turned there
    found = {calls.operator: (calls.calls, calls.operations) for calls in work.outside}
    assert found["aten.mean.dim"] == (1, mean)
    assert found["aten.cumsum"] == (1, cumsum)


def test_reasons(work):
    """Each operator that is left has the partitioner's reason, or says that it is not taken, and a way out."""
    said = {calls.operator: (calls.why, calls.way_out) for calls in work.outside}
    assert said["aten.mean.dim"][0] == "mean.dim only supports keepdim=True"
    assert "keepdim=True).flatten(1)" in said["aten.mean.dim"][1]
    assert said["aten.cumsum"][0] == NOT_TAKEN
    assert "a CPU kernel runs it" in said["aten.cumsum"][1]
    first, *rest = Delivered("net", "int8", "made", findings=(work,)).notes[0].note.split("\n")
    assert first == "method forward: 97 % of the operations are delegated"
    assert rest[0].startswith(
        "  aten.mean.dim, 1 call, 3 % of the operations: mean.dim only supports keepdim=True; write"
    )
