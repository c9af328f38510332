"""The Python host chooses what the library chooses, for the same reasons, and gives the same outputs."""

from pathlib import Path
from typing import Any

import pytest
from pteforge.errors import FileFormatError, NoPayloadFits, PteforgeError
from pteforge.runtime import LoadedProgram, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_WEIGHTS_DAMAGED = "large-weights-damaged"
"""Where they differ: the host copies and verifies whole payloads, the library verifies large weights on request."""

_OUTPUT_IS_INPUT = "v2-aliases"
"""Its payloads plan no memory for outputs and return an input. ExecuTorch's Python bindings allocate memory for that
output, which replaces the input's: outputs are wrong, also without a fat file."""

_SAME_WORDS = ("it needs a newer", "it is a fat program", "it is empty")


def _verdicts(report) -> list[tuple[str, str]]:
    """Payload and verdict of each line; or the reason, if both sides word it alike."""
    verdicts = []
    for line in report:
        name, verdict, why = (*line.split(": ", 2), "")[:3]
        same = why.startswith(_SAME_WORDS) or why.endswith("in this runtime")
        verdicts.append(("", name) if name == "container refused" else (name, why if same else verdict))
    return verdicts


def test_same_choice(outcomes, programs):
    """For every program, both try the same payloads, choose the same one and get equal outputs; or both refuse it."""
    import torch

    equal = 0
    for name, outcome in outcomes.items():
        program, refused = _load(programs / f"{name}.pte")
        if name == _WEIGHTS_DAMAGED:
            assert all("it is damaged" in line for line in refused)
            continue
        assert _verdicts(program.report if program else refused) == _verdicts(outcome.report), name
        if not program:
            assert outcome.error, name
            continue
        calls = torch.load(programs / f"{name}.calls.pt")
        if outcome.error:
            with pytest.raises(PteforgeError):
                _outputs(program, calls)
            continue
        if name == _OUTPUT_IS_INPUT:
            continue
        found, expected = _outputs(program, calls), torch.load(programs / f"{name}.outputs.pt")
        assert len(found) == len(expected), name
        assert all(map(torch.equal, found, expected)), name
        equal += 1
    assert equal >= 10


def _load(path: Path) -> tuple[LoadedProgram | None, tuple[str, ...]]:
    """The program; or None, and the report as the library words it."""
    try:
        return load(path), ()
    except NoPayloadFits as error:
        return None, error.report
    except FileFormatError as error:
        return None, (f"container refused: {error}",)


def _outputs(program: LoadedProgram, calls) -> list[Any]:
    return [output for method, inputs in calls.items() for x in inputs for output in program.run(method, x)]
