"""The Python host chooses what the library chooses, for the same reasons, and gives the same outputs."""

from __future__ import annotations

from collections.abc import Mapping
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
"""The one where they differ: the host, which copies all of a payload, verifies all of it; the library, which copies
nothing, verifies large weights on request."""

_OUTPUT_IS_INPUT = "v2-aliases"
"""Whose payloads plan no memory for outputs and return an input. ExecuTorch's Python bindings give such an output
memory of its own, which takes the input's away: what they compute is wrong, without a fat file as well."""

_SAME_WORDS = ("it needs a newer", "it is a fat program", "it is empty")


def _verdicts(report: tuple[str, ...]) -> list[tuple[str, str]]:
    """Payload and what became of it, line by line; with the reason where both sides word it alike."""
    return [_verdict(*line.split(": ", 2)) for line in report]


def _verdict(name: str, verdict: str, why: str = "") -> tuple[str, str]:
    if name == "container refused":
        return "", name
    return name, why if why.startswith(_SAME_WORDS) or why.endswith("in this runtime") else verdict


def test_same_choice(outcomes: Mapping[str, Any], programs: Path) -> None:
    """For every program: the same payloads looked at, the same one chosen, equal outputs; or both refuse it."""
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


def _outputs(program: LoadedProgram, calls: Mapping[str, list[Any]]) -> list[Any]:
    return [output for method, inputs in calls.items() for each in inputs for output in program.run(method, each)]
