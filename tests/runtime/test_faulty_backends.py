"""Fat programs on backends that fail, in C++ and with sanitizers: the library falls back, and calls are error codes."""

import os
import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_CANNOT_LOAD = "faulty: passed over: its method does not load"
_NEEDS = "faulty: passed over: it needs"
_RIGHT = ["3", "6", "9", "12"]


@pytest.fixture
def call(sanitized, programs):
    """Loads programs one after another in one process, and calls each four times; returns the lines that it prints.

    The test fails if the process dies, or a sanitizer reports anything.
    """

    def call(*names: str, beside: str = "") -> list[str]:
        files = [programs / "faulty" / f"{name}.pte" for name in names]
        options = ["--while", programs / "faulty" / f"{beside}.pte"] if beside else []
        command = [sanitized / "call_faulty", *options, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

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
    reason, error = call("alone")
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
        ("init-nothing", ["0", "0", "0", "0"]),
        ("execute-nothing", ["0", "6", "9", "12"]),
        ("third-nothing", ["3", "6", "6", "12"]),
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
