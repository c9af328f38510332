"""Files say which lines of the model their instructions come from, also where exir's own way gives up."""

from pathlib import Path

import pytest
from pteforge.tests.lowering import recipe


def traced(target):
    return recipe(target, compile={"emit_stacktrace": True})


@pytest.fixture
def frames(lower):
    """What each instruction of a lowered model is, with its stack frames."""

    def found(builder, target):
        from executorch.exir._serialize._program import deserialize_pte_binary

        (plan,) = deserialize_pte_binary(lower(builder, traced(target)).file).program.execution_plan
        (chain,) = plan.chains
        return [
            (_name(instruction, plan), list(listed.items))
            for instruction, listed in zip(chain.instructions, chain.stacktrace, strict=True)
        ]

    return found


@pytest.fixture
def lines(frames):
    """The same with the source of the lines, those of torch left out."""

    def found(builder, target):
        return [
            (name, [frame.context for frame in listed if "/torch/" not in frame.filename])
            for name, listed in frames(builder, target)
        ]

    return found


def _name(instruction, plan):
    from executorch.exir.schema import DelegateCall, KernelCall

    match instruction.instr_args:
        case DelegateCall(delegate_index=index):
            return plan.delegates[index].id
        case KernelCall(op_index=index):
            return plan.operators[index].name
    return ""


def test_operators_as_upstream(lower, upstream):
    """A program of operators only is the file that exir's own stack traces give."""
    asked = "builders:mlp", traced("portable")
    assert lower(*asked).payloads[""] == upstream(*asked)


def test_behind_a_delegate(lines, upstream):
    """A delegate's call has the lines of what is in it, operators behind it have theirs; exir makes no such file."""
    context = "return self.second(torch.atan(self.first(values)))"
    assert lines("builders:two_partitions", "xnnpack") == [
        ("XnnpackBackend", [context]),
        ("aten::atan", [context]),
        ("XnnpackBackend", [context]),
    ]
    with pytest.raises(Exception, match="should have corresponding stacktrace"):
        upstream("builders:two_partitions", traced("xnnpack"))


def test_operators_of_passes(lines, upstream):
    """Operators that stand in no line of the model, such as those that write state, have no lines, and hurt nobody."""
    found = lines("builders:counter", "portable")
    assert [contexts for name, contexts in found if name == "aten::copy_"] == [[], []]
    assert ("aten::mul", ["return self.linear(self.total) * self.calls"]) in found
    with pytest.raises(Exception, match="Failed with error: 'stack_trace'"):
        upstream("builders:counter", traced("portable"))


def test_all_lines_of_a_delegate(frames):
    """Of a delegate with several operators, every line that computes anything in it is there, once."""
    found = frames("builders:conv_net", "xnnpack")
    (listed,) = (listed for name, listed in found if name == "XnnpackBackend")
    files = [Path(frame.filename).name for frame in listed]
    assert files == ["networks.py", "conv.py", "linear.py"]


@pytest.mark.slow
def test_branches(lines):
    """Operators and delegates in branches have the lines of their branch, and jumps have none."""
    for target, multiplies in [("portable", "aten::mul"), ("xnnpack", "XnnpackBackend")]:
        found = lines("builders:nested_branches", target)
        assert [contexts[0] for name, contexts in found if name == "aten::gt"] == [NESTED, NESTED]
        innermost = [contexts[-1].partition(";")[0] for name, contexts in found if name in (multiplies, "aten::sub")]
        assert innermost == [
            "sub = l_args_3_0__1 - 3",
            "mul = l_args_3_0__1 * 3",
            "mul = l_args_3_0__1 * l_args_3_0__1",
        ]
        assert all(not contexts for name, contexts in found if not name)


NESTED = "return torch.cond(values.sum() > 0, small_or_large, lambda v: v * v, (values,))"


@pytest.mark.parametrize(
    ("builder", "operator"), [("rows", "aten::relu"), pytest.param("sums", "aten::mul", marks=pytest.mark.slow)]
)
def test_loops(frames, builder, operator):
    """What a loop itself takes has no lines, and what is in it has; they do not tell what torch numbers by process."""
    found = frames(f"builders:{builder}", "portable")
    traced_names = {name for name, listed in found if listed}
    assert operator in traced_names
    assert not any(name.startswith("executorch_prim::") or name == "" for name in traced_names)
    assert "aten::select_copy" not in traced_names
    files = {frame.filename for _, listed in found for frame in listed}
    assert {Path(file).name for file in files} == {"networks.py", "<eval_with_key>"}
