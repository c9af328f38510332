"""The Python host chooses what the library chooses, for the same reasons, and gives the same outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pteforge.errors import FileFormatError, NoPayloadFits, PteforgeError
from pteforge.runtime import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_SAME_WORDS = ("needs", "is a fat program", "is empty", "has no method")


def _look(report: tuple[str, ...]) -> list[tuple[str, str]]:
    """Payload and whether it was chosen, line by line, with the reason where both sides word it alike."""
    lines = [line.split(": ", 2) for line in report]
    return [
        (
            name,
            why
            if verdict == "passed over"
            and why.startswith(tuple(f"it {word}" for word in _SAME_WORDS))
            and "blob" not in why
            else verdict,
        )
        for name, verdict, why in lines
    ]


def test_same_choice(outcomes: Mapping[str, object], programs: Path) -> None:
    """For every program: the same payloads looked at, the same one chosen, equal outputs; or both refuse it."""
    import torch

    compared = 0
    for name, outcome in outcomes.items():
        try:
            program = load(programs / f"{name}.pte")
        except NoPayloadFits as error:
            assert outcome.error, name  # type: ignore[attr-defined]  # Outcome of conftest.py
            assert _look(error.report) == _look(outcome.report), name  # type: ignore[attr-defined]  # see above
            continue
        except FileFormatError:
            assert outcome.error, name  # type: ignore[attr-defined]  # see above
            assert outcome.report[0].startswith("container refused: "), name  # type: ignore[attr-defined]  # see above
            continue
        assert _look(program.report) == _look(outcome.report), name  # type: ignore[attr-defined]  # see above
        calls = torch.load(programs / f"{name}.calls.pt")
        if outcome.error:  # type: ignore[attr-defined]  # see above
            with pytest.raises(PteforgeError):
                [program.run(method, each) for method, inputs in calls.items() for each in inputs]
            continue
        found = [output for method, inputs in calls.items() for each in inputs for output in program.run(method, each)]
        expected = torch.load(programs / f"{name}.outputs.pt")
        assert len(found) == len(expected), name
        assert all(map(torch.equal, found, expected)), name
        compared += 1
    assert compared >= 10
