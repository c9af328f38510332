"""diagnose: what keeps torch.export from taking a model, on which line, and what mends it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.explain.diagnosing import Frames
from pteforge.tasks.explain.stages.diagnose import Diagnose
from pteforge.tasks.results.diagnosis import Cause, Diagnosis

REFUSED = Path(__file__).parents[2] / "zoo" / "refused.py"


@pytest.fixture
def diagnose(stages):
    """Runs the stage on a builder of tests/zoo/refused.py."""

    def run(builder="model", *, method=None, strict=False, dynamic_shapes=None, **kwargs):
        source = {"builder": builder if ":" in builder else f"refused:{builder}", "kwargs": kwargs}
        params = Diagnose.Params(source=source, method=method, strict=strict, dynamic_shapes=dynamic_shapes)
        made = stages.run(Diagnose, params)
        return Diagnosis.from_json(stages.json(made["diagnosis"]))

    return run


@pytest.mark.parametrize(
    ("name", "code", "problem", "remedy"),
    [
        ("branches", "if x.sum() > 0:", "which way this line goes", "torch.cond"),
        ("counts", "if taken > 3:", "`taken > 3` is False", "`torch._check(taken <= 3)`"),
        ("loops", "while x.sum() < 100:", "how often this loop runs", "fixed number of steps"),
        ("asserts", "assert x.sum() > 0", "this assertion", "is_exporting()"),
        ("finds", "if found.shape[0] > 0:", "`found.shape[0] > 0` is True", "`torch._check(found.shape[0] > 0)`"),
        ("repeats", "return torch.cat([x] * count.tolist()[0])", "a Python number", "builder"),
        ("masked", "if mask.all():", "which way this line goes", "torch.cond"),
    ],
)
def test_what_depends_on_data(diagnose, name, code, problem, remedy):
    """Each line that needs the value of a tensor is a finding: what it needs it for, and what to write in its place."""
    found = diagnose(name=name)
    assert not found.attempt.exported
    assert not found.well
    finding = next(each for each in found.relevant if each.kind == "data-dependent")
    assert finding.code == code
    assert finding.only == ("non-strict" if found.attempts[1].exported else None)
    assert re.fullmatch(r"refused\.py:\d+ in forward", finding.where)
    assert problem in finding.problem
    assert any(remedy in each for each in finding.remedies)


def test_every_line_is_named_once(diagnose):
    """Draft export and strict mode meet the same lines; each is one finding, in order, and in both modes."""
    found = diagnose(name="branches")
    assert [finding.code for finding in found.findings] == ["if x.sum() > 0:", "return x * 2 if x.max() > 3 else x"]
    assert found.drafted == found.findings == found.relevant


def test_no_check_says_empty(diagnose):
    """Where the example finds nothing, no check is advised with which the file would never find anything."""
    (finding,) = diagnose(name="finds_nothing").findings
    assert "`found.shape[0] > 0` is False" in finding.problem
    assert not any("torch._check" in remedy for remedy in finding.remedies)
    assert any("candidates" in remedy for remedy in finding.remedies)


@pytest.mark.parametrize("kind", ["data-dependent", "dynamic dimension", "graph break", "known cause"])
def test_lines_of_packages(kind):
    """Of a line in an installed package, nobody is asked to edit it: there is a way around it."""
    edit, shape = "write the line in another way", "bound 'rows' in the dynamic shapes: {max: 4}"
    frames = Frames([REFUSED.parent])
    own = Cause(kind, "", (shape, edit), where="refused.py:1 in forward")
    assert frames.without_edits(own) == own
    packages = frames.without_edits(replace(own, where="pytest/__init__.py:1 in forward"))
    assert packages.remedies[0] == shape
    assert (edit in packages.remedies) is (kind == "known cause")
    assert any("installed package pytest" in remedy for remedy in packages.remedies) is (kind != "known cause")


@pytest.mark.parametrize("name", ["counts", "finds"])
def test_checks_mend_it(diagnose, name):
    """The `torch._check` that a finding asks for is enough: with it, both modes export the model."""
    (finding,) = diagnose(name=name).findings
    (check,) = re.findall(r"torch\._check\(.+?\)(?=`)", "\n".join(finding.remedies))
    mended = diagnose(name=f"{name}_checked")
    assert check in REFUSED.read_text(encoding="utf-8")
    assert mended.well
    assert all(attempt.exported for attempt in mended.attempts)
    assert mended.findings == ()


def test_a_model_that_is_well(diagnose):
    """A model that slices by `.item()` is exported in both modes, and nothing is said of it."""
    found = diagnose(name="slices")
    assert found.well
    assert (found.methods, found.findings, found.draft) == (("forward",), (), "")


def test_fake_kernels(diagnose):
    """A missing one is named with the line that calls the operator, a wrong one although the model is exported."""
    missing = diagnose(name="untold")
    (finding,) = missing.findings
    assert (finding.kind, finding.code) == ("missing fake kernel", "return torch.ops.refused.untold(x) * 2")
    assert "refused::untold" in finding.problem
    assert "register_fake('refused::untold')" in finding.remedies[0]
    assert "float32 of 2 dimensions" in finding.remedies[0]
    wrong = diagnose(name="mistold")
    (finding,) = wrong.findings
    assert wrong.attempt.exported
    assert not wrong.well
    assert finding.kind == "mismatched fake kernel"
    assert "torch.float64 and torch.float32" in finding.problem


def test_only_one_mode(diagnose):
    """The mode that exports a model is the first way out; where it is set, what the other meets is no matter."""
    loose, strict = diagnose(name="arrays"), diagnose(name="arrays", strict=True)
    assert [attempt.exported for attempt in loose.attempts] == [False, True]
    assert loose.relevant[0].kind == "mode"
    assert loose.relevant[0].remedies == ("set `strict: true` for the model",)
    assert "NumPy" in loose.relevant[1].problem
    assert loose.draft.startswith("RuntimeError")
    assert strict.well
    assert {finding.only for finding in strict.findings} == {"non-strict"}


def test_graph_breaks(diagnose):
    """What strict mode cannot trace is named with its line, and concerns models that ask for strict mode."""
    loose, strict = diagnose(name="writes"), diagnose(name="writes", strict=True)
    assert loose.well
    (broken,) = loose.findings
    assert (broken.kind, broken.code, broken.only) == ("graph break", 'sys.stdout.write("")', "strict")
    assert "is_exporting()" in broken.remedies[-1]
    assert not strict.well
    assert [finding.kind for finding in strict.relevant] == ["mode", "graph break"]
    assert strict.relevant[0].remedies == ("set `strict: false` for the model",)


@pytest.mark.parametrize(
    ("kwargs", "code", "needed", "remedy"),
    [
        ({"kind": "reshapes"}, "return x.reshape(2, 4) + 1", "4 * x.shape[0] == 8", "leave 'rows' out of the dyn"),
        (
            {"kind": "bounded"},
            "if x.shape[0] > 16:",
            "x.shape[0] <= 16",
            "bound 'rows' in the dynamic shapes: {min: 2, max: 16}",
        ),
        (
            {"kind": "pairs"},
            "return x.reshape(-1, 8) + 1",
            "4 * x.shape[0] % 8 == 0",
            "bound 'rows' in the dynamic shapes: {min: 2, max: 32, multiple_of: 2}; in a builder, `2*_rows` with _rows",
        ),
        (
            {"kind": "halves"},
            "return sum(x.chunk(2))",
            "(x.shape[0] + (x.shape[0] + 1) // 2 - 1) // ((x.shape[0] + 1) // 2) == 2",
            "bound 'rows' in the dynamic shapes: {min: 2, max: 32, multiple_of: 2}; in a builder, `2*_rows` with _rows",
        ),
        (
            {"kind": "unfolds"},
            "return x.unfold(0, 2, 2) + 1",
            "x.shape[0] // 2 != 1",
            "bound 'rows' in the dynamic shapes: {min: 4, max: 32}",
        ),
        (
            {"kind": "adds", "names": ["a", "b"]},
            "return x + y",
            "x.shape[0] == y.shape[0]",
            "give 'b' and 'a' one name",
        ),
    ],
)
def test_dynamic_dimensions(diagnose, kwargs, code, needed, remedy):
    """A line that does not hold for all sizes is named, with what it holds for, and the shapes that are possible."""
    (finding,) = diagnose("dynamic", **kwargs).findings
    assert (finding.kind, finding.code) == ("dynamic dimension", code)
    assert f"`{needed}`" in finding.problem
    assert finding.remedies[0].startswith(remedy)


def test_recurrent_layers(diagnose):
    """A dynamic number of steps is said to be what torch.export unrolls, and not what a line could be written for."""
    (finding,) = diagnose("dynamic", kind="steps").findings
    assert finding.kind == "dynamic dimension"
    assert "unrolls over the steps" in finding.problem
    assert not any("x.shape" in remedy for remedy in finding.remedies)


def test_bounds_mend_it(diagnose):
    """Within the bound that a finding names, the model is well: from the builder, or from the zoo file."""
    assert diagnose("dynamic", kind="bounded", largest=16).well
    bound = {"forward": [{"0": {"min": 1, "max": 16, "name": None}}]}
    assert diagnose("dynamic", kind="bounded", dynamic_shapes=bound).well
    for kind, mended in (("halves", {"min": 2, "multiple_of": 2}), ("unfolds", {"min": 4})):
        bound = {"forward": [{"0": {"max": 32, "name": "rows"} | mended}]}
        assert diagnose("dynamic", kind=kind, dynamic_shapes=bound).attempt.exported


def test_what_cannot_be_returned(diagnose):
    """A cache among the outputs is a known cause, the same in both modes, and draft export does not get past it."""
    found = diagnose(name="caches")
    (finding,) = found.findings
    assert (finding.kind, finding.only) == ("known cause", None)
    assert "use_cache=False" in finding.remedies[0]
    assert found.draft.startswith("RuntimeError: Found <class 'refused.Cache'> in output")


def test_methods(diagnose):
    """A method is diagnosed by name, without one the first; each diagnosis names all of them."""
    first, second = diagnose("methods"), diagnose("methods", method="choose")
    assert first.methods == second.methods == ("forward", "choose")
    assert (first.method, first.well) == ("forward", True)
    assert (second.method, second.well) == ("choose", False)


def test_bad_input(diagnose):
    """Builders that fail, inputs that do not fit, and shapes that are none are the user's, as in `export`."""
    with pytest.raises(SourceError, match="no checkpoint"):
        diagnose("faulty:raises")
    with pytest.raises(SourceError, match=r"its own example inputs .*'forward'"):
        diagnose("faulty:wrong_shape")
    with pytest.raises(SourceError, match=r"'forward' has 2 entries, .*1 inputs"):
        diagnose("builders:pair", dynamic_shapes={"forward": [None, None]})


def test_program_files(stages, tmp_path):
    """A `.pt2` file is exported already."""
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), tmp_path / "relu.pt2")
    params = Diagnose.Params(source={"builder": "", "kwargs": {}})
    made = stages.run(Diagnose, params, program_file=tmp_path / "relu.pt2")
    assert Diagnosis.from_json(stages.json(made["diagnosis"])).well


def test_the_model_stays_as_it_is(stages, diagnose):
    """A diagnosis names no folder of this machine, and is the same when it is made again."""
    first, again = diagnose(name="branches"), diagnose(name="branches")
    assert first == again
    assert str(stages.folder) not in str(first)
    assert str(REFUSED.parent) not in str(first)
