"""Files say which lines of the model their instructions come from, also where exir's own way gives up."""

from __future__ import annotations

from pathlib import Path

import pytest


def recipe(target):
    """With stack traces."""
    return {"specializations": [{"target": target}], "compile": {"emit_stacktrace": True}}


@pytest.fixture
def frames(stages):
    """What each instruction of a lowered model is, with its stack frames."""

    def found(builder, target):
        from executorch.exir._serialize._program import deserialize_pte_binary

        (plan,) = deserialize_pte_binary(stages.lower(builder, recipe(target)).file).program.execution_plan
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
            (name, [frame.context for frame in each if "/torch/" not in frame.filename])
            for name, each in frames(builder, target)
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


def test_operators_as_upstream(stages, upstream):
    """A program of operators only is the file that exir's own stack traces give."""
    asked = "chain_models:mlp", recipe("portable")
    assert stages.lower(*asked).file == upstream(*asked)


def test_behind_a_delegate(lines, upstream):
    """A delegate's call has the lines of what is in it, operators behind it have theirs; exir makes no such file."""
    context = "return self.second(torch.atan(self.first(values)))"
    assert lines("chain_models:two_partitions", "xnnpack") == [
        ("XnnpackBackend", [context]),
        ("aten::atan", [context]),
        ("XnnpackBackend", [context]),
    ]
    with pytest.raises(Exception, match="Each instruction should have corresponding stacktrace"):
        upstream("chain_models:two_partitions", recipe("xnnpack"))


def test_operators_of_passes(lines, upstream):
    """Operators that stand in no line of the model, such as those that write state, have no lines, and hurt nobody."""
    found = lines("chain_models:counter", "portable")
    assert [told for name, told in found if name == "aten::copy_"] == [[], []]
    assert ("aten::mul", ["return self.linear(self.total) * self.calls"]) in found
    with pytest.raises(Exception, match="Failed with error: 'stack_trace'"):
        upstream("chain_models:counter", recipe("portable"))


def test_all_lines_of_a_delegate(frames):
    """Of a delegate with several operators, every line that computes anything in it is there, once."""
    found = frames("chain_models:conv_net", "xnnpack")
    convolving, linear = (listed for name, listed in found if name == "XnnpackBackend")
    assert [Path(frame.filename).name for frame in convolving] == ["chain_models.py", "conv.py", "batchnorm.py"]
    assert [Path(frame.filename).name for frame in linear] == ["chain_models.py", "linear.py"]


@pytest.mark.slow
def test_branches(lines):
    """Operators and delegates in branches have the lines of their branch, and jumps have none."""
    for target, multiplies in [("portable", "aten::mul"), ("xnnpack", "XnnpackBackend")]:
        found = lines("control_flow_models:nested", target)
        assert [told[0] for name, told in found if name == "aten::gt"] == [NESTED, NESTED]
        innermost = [told[-1].partition(";")[0] for name, told in found if name in (multiplies, "aten::sub")]
        assert innermost == [
            "sub = l_args_3_0__1 - 3",
            "mul = l_args_3_0__1 * 3",
            "mul = l_args_3_0__1 * l_args_3_0__1",
        ]
        assert all(not told for name, told in found if not name)


NESTED = "return torch.cond(values.sum() > 0, small_or_large, lambda v: v * v, (values,))"


@pytest.mark.parametrize(
    ("builder", "operator"), [("rows", "aten::relu"), pytest.param("sums", "aten::mul", marks=pytest.mark.slow)]
)
def test_loops(frames, builder, operator):
    """What a loop itself takes has no lines, and what is in it has; they do not tell what torch numbers by process."""
    found = frames(f"control_flow_models:{builder}", "portable")
    told = {name for name, listed in found if listed}
    assert operator in told
    assert not any(name.startswith("executorch_prim::") or name == "" for name in told)
    assert "aten::select_copy" not in told
    files = {frame.filename for _, listed in found for frame in listed}
    assert {Path(file).name for file in files} == {"control_flow_models.py", "<eval_with_key>"}
