"""Fat programs on backends that fail, in C++ and with sanitizers: the library falls back, and calls are error codes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_CANNOT_LOAD = "faulty: passed over: its method does not load"
_NEEDS = "faulty: passed over: it needs"
_RIGHT = ["3", "6", "9", "12"]


@pytest.fixture
def call(sanitized, programs):
    """Loads programs one after another in one process, and calls each four times; returns the lines that it prints.

    The test fails if the process ends in another way than `ends`, or a sanitizer reports anything.
    """

    def call(*names: str, beside: str = "", remember: tuple[Path, str] | None = None, ends: int = 0) -> list[str]:
        files = [programs / "faulty" / f"{name}.pte" for name in names]
        options = ["--remember", *remember] if remember else []
        options += ["--while", programs / "faulty" / f"{beside}.pte"] if beside else []
        command = [sanitized / "call_faulty", *options, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
        assert done.returncode == ends, done.stderr
        return [line for line in done.stdout.splitlines() if not line.endswith(" delegates")]

    return call


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("init-throw", f"{_CANNOT_LOAD} (a backend threw an exception: the device?is lost)"),
        ("init-throw-number", f"{_CANNOT_LOAD} (a backend threw something other than a std::exception)"),
        ("init-error", f"{_CANNOT_LOAD} (Error::AccessFailed)"),
        ("UnsureBackend", f"{_NEEDS} UnsureBackend, whose is_available threw an exception: the device?is lost"),
        ("IdlingBackend", f"{_NEEDS} IdlingBackend, which is not available on this device"),
    ],
)
def test_faults_at_load(call, name, reason):
    """The next payload runs, and the report says why the first one does not."""
    first, chosen, *outputs = call(name)
    assert first == reason
    assert chosen.startswith("portable: chosen: ")
    assert outputs == _RIGHT


def test_no_other_payload(call):
    """Where no other payload is left, loading ends with the error code that it always ends with."""
    reason, error = call("alone-init-throw")
    assert (reason, error) == (f"{_CANNOT_LOAD} (a backend threw an exception: the device?is lost)", _NO_PAYLOAD)


_NO_PAYLOAD = "Error::DelegateInvalidCompatibility"
_THREW, _AFTER = "Error::Internal", "Error::InvalidState"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", _RIGHT),
        ("execute-throw", [_THREW, _AFTER, _AFTER, _AFTER]),
        ("execute-throw-number", [_THREW, _AFTER, _AFTER, _AFTER]),
        ("execute-error", ["Error::AccessFailed", "6", "9", "12"]),
        ("third-throw", ["3", "6", _THREW, _AFTER]),
        ("third-throw-number", ["3", "6", _THREW, _AFTER]),
        ("third-error", ["3", "6", "Error::AccessFailed", "12"]),
    ],
)
def test_faults_of_calls(call, name, expected):
    """A call that throws is an error code, and so are those after it, until the method is loaded again.

    After an error that the backend returns, calls go on.
    """
    chosen, *outputs = call(name)
    assert chosen.startswith("faulty: chosen: ")
    assert outputs == expected


def test_loading_again(call):
    """After a call that threw, the method can be loaded again in the same process."""
    lines = call("third-throw", "third-throw", "init-throw")
    assert lines[1:5] == lines[6:10] == ["3", "6", _THREW, _AFTER]
    assert lines[-4:] == _RIGHT


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("init-nothing", ["0 is wrong"] * 4),
        ("execute-nothing", ["0 is wrong", "6", "9", "12"]),
        ("third-nothing", ["3", "6", "6 is wrong", "12"]),
    ],
)
def test_nothing_written(call, name, expected):
    """What a backend leaves unwritten while it reports success stays what it was: nothing else can be known."""
    chosen, *outputs = call(name)
    assert chosen.startswith("faulty: chosen: ")
    assert outputs == expected


@pytest.mark.parametrize("name", ["init-hang", "execute-hang"])
def test_hanging(call, name):
    """A backend that hangs holds up its caller only: other threads load and call programs."""
    *_, chosen, first, second, third, fourth = call("none", beside=name)
    assert chosen.startswith("faulty: chosen: ")
    assert [first, second, third, fourth] == _RIGHT


_WRONG = (
    *("zeros", "nan", "infinity", "shifted", "last", "sign", "noise", "echo", "half", "part", "resized", "slow"),
    *("later", "first", "second", "alternating", "stale", "cached"),
)
_OTHERS = [f"{when}-{how}" for when in ("execute", "third") for how in ("throw", "throw-number", "error", "nothing")]
_CHECK = "faulty: passed over: it fails its own check: "


@pytest.mark.parametrize("name", [*(f"answer-{what}" for what in _WRONG), *_OTHERS, "init-nothing"])
def test_faults_that_checks_find(call, name):
    """A faulty backend answers an app's calls wrongly, or not at all; none of a file that checks itself.

    All calls are then answered by the next payload, from the first one on.
    """
    chosen, *outputs = call(name)
    assert chosen.startswith("faulty: chosen: ")
    assert len(outputs) == 4
    assert outputs != _RIGHT
    failed, chosen, *outputs = call(f"checked-{name}")
    assert failed.startswith(_CHECK)
    assert chosen.startswith("portable: chosen: ")
    assert chosen.endswith("; it passed its own check")
    assert outputs == _RIGHT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("init-throw", f"{_CANNOT_LOAD} (a backend threw an exception: the device?is lost)"),
        ("init-error", f"{_CANNOT_LOAD} (Error::AccessFailed)"),
        ("IdlingBackend", f"{_NEEDS} IdlingBackend, which is not available on this device"),
        ("execute-throw", f"{_CHECK}it fails (Error::Internal) in run 1 of 3"),
        ("answer-zeros", f"{_CHECK}output 0 is off by 1 of its size, an element by 1 of the largest one; "),
        ("answer-nan", f"{_CHECK}output 0 has NaN or infinity where the golden one has none"),
        ("answer-resized", f"{_CHECK}output 0 has another dtype or size than the golden one in run 1 of 3"),
        ("answer-stale", f"{_CHECK}output 0 is off by "),
        ("answer-second", f"{_CHECK}it returns other outputs for equal inputs"),
    ],
)
def test_reasons(call, name, reason):
    """The report says what is wrong; of a payload that does not load, the same as without a check."""
    assert call(f"checked-{name}")[0].startswith(reason)


def test_nothing_of_the_check_stays(call, sanitized, programs):
    """A sound backend is checked on delegates that are gone when the method is loaded, and then it runs."""
    command = [sanitized / "call_faulty", programs / "faulty" / "checked-none.pte"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    chosen, delegates, *outputs = done.stdout.splitlines()
    assert chosen.startswith("faulty: chosen: ")
    assert chosen.endswith("; it passed its own check")
    assert delegates == "2 delegates"
    assert outputs == _RIGHT
    assert call("checked-none", "none", "checked-answer-zeros")[5:10] == [*call("none")]


def test_no_payload_passes(call):
    """Where the only payload that runs here fails its check, loading fails, and the report says why."""
    reason, error = call("checked-alone-answer-zeros")
    assert (reason.startswith(_CHECK), error) == (True, _NO_PAYLOAD)


def test_remembered(call, tmp_path):
    """A payload that has passed is not checked again on the same device; one that has failed is, and fails again."""
    remember = tmp_path / "checks", "driver 1"
    first, *outputs = call("checked-none", remember=remember)
    assert first.endswith("; it passed its own check")
    again, *outputs = call("checked-none", remember=remember)
    assert again.endswith("; it passed its own check before")
    assert outputs == _RIGHT
    assert call("checked-none", remember=(remember[0], "driver 2"))[0].endswith("; it passed its own check")
    for chosen in ("; it passed its own check", "; it passed its own check before"):
        failed, portable, *outputs = call("checked-answer-later", remember=remember)
        assert failed.startswith(_CHECK)
        assert portable.endswith(chosen)
        assert outputs == _RIGHT
    remember[0].write_text(f"failed {'0' * 64}\n" * 20_000)
    call("checked-none", remember=remember)
    assert len(remember[0].read_text().splitlines()) == 2  # it does not grow forever
    unusable = tmp_path / "missing" / "checks", ""
    assert call("checked-none", remember=unusable)[0].endswith("; it passed its own check")


def test_aborting(call, tmp_path):
    """A backend that aborts ends the process; not a third time, where checks are remembered."""
    remember = tmp_path / "checks", "driver 1"
    for _ in range(2):
        assert call("checked-execute-abort", remember=remember, ends=-signal.SIGABRT) == []
    reason, chosen, *outputs = call("checked-execute-abort", remember=remember)
    assert reason == "faulty: passed over: its own check has ended the process more than once"
    assert chosen.startswith("portable: chosen: ")
    assert outputs == _RIGHT
    assert call("checked-execute-abort", remember=(remember[0], "driver 2"), ends=-signal.SIGABRT) == []
