"""What the worker server does not import, and that it is there for code that asks for it."""

import os
import subprocess
import sys

import pytest
from pteforge.tasks.upstream import SWITCH


def run(code: str, **environment: str) -> str:
    """What a fresh interpreter prints for the code, after it has imported what the server imports."""
    start = "import sys\nimport pteforge.tasks.lowering.preload\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_imported_when_asked_for():
    """Lowering a layer imports none of the packages; afterwards, code of the user imports each of them as ever."""
    imported, *names = run(
        "import pickle\n"
        "pickle.whichmodule(object(), 'nowhere')\n"
        "print({'pandas', 'redis', 'torch._inductor.pattern_matcher'} & {*sys.modules})\n"
        "import executorch.devtools, redis\n"
        "from executorch.devtools import Inspector, inspector\n"
        "from torch.export._remove_auto_functionalized_pass import remove_self_clone\n"
        "assert executorch.devtools.Inspector is inspector.Inspector is Inspector is not None\n"
        "assert not hasattr(executorch.devtools, 'absent')\n"
        "print(remove_self_clone.__name__, redis.Redis.__name__)\n"
    ).split()
    assert (imported, names) == ("set()", ["remove_self_clone", "Redis"])


@pytest.mark.slow
def test_functionalized_operators_are_removed():
    """A graph with such an operator goes through upstream's pass; one without is only tidied, as upstream does it."""
    code = """
import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch.export._remove_auto_functionalized_pass import unsafe_remove_auto_functionalized_pass as remove

@torch.library.custom_op("imports_test::scale", mutates_args=["values"])
def scale(values: torch.Tensor, out: torch.Tensor) -> None:
    values.mul_(2)

class Plain(torch.nn.Module):
    def forward(self, values):
        unused = values + 2
        return values + 1

class Mutating(torch.nn.Module):
    def forward(self, values):
        values = values + 0
        scale(values, values + 1)
        return values

for module in Plain(), Mutating():
    program = torch.export.export(module, (torch.ones(2),)).run_decompositions({})
    dead = program.graph.call_function(torch.ops.aten.neg.default, ())
    done = remove(program)
    assert done is program
    print([str(node.target) for node in done.graph.nodes if node.op == "call_function"])
    print("torch._inductor.pattern_matcher" in sys.modules)
"""
    lean, plain = (run(code, **{SWITCH: kind}).splitlines() for kind in ("lean", "plain"))
    assert lean[::2] == plain[::2]
    assert lean[1::2] == ["False", "True"]
    assert not any("auto_functionalized" in operators or "neg" in operators for operators in lean[::2])
    assert "imports_test.scale" in lean[2]
