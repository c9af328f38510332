"""Commands that call native code of others survive its crashes."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import pytest

PROGRAM = """
import os, sys
from pteforge.errors import InputError
from pteforge.flows.cli.main import exit_code, in_child

def command(file):
    print("began", flush=True)
    if file.endswith("bad"):
        raise InputError("no such file")
    if file.endswith("crashes"):
        os.abort()

with exit_code() as end:
    in_child(command)(file=sys.argv[1])
sys.exit(end.code)
"""


@pytest.mark.parametrize(
    ("file", "code", "told"),
    [
        ("some.pte", 0, ""),
        ("bad", 2, "error: no such file\n"),
        ("crashes", 1, "error: ExecuTorch's runtime crashed (SIGABRT) while it loaded or ran crashes: the file is"),
    ],
)
def test_crashes_are_told(file, code, told):
    """A command ends with its own exit code and says everything once; one that native code ends says so, with 1."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, file], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(told)
    assert (done.stderr == "") == (told == "")
    assert "Traceback" not in done.stderr
    assert done.stdout == "began\n"


CONVERTED = """
import os, signal, sys
from pteforge.flows.cli.main import exit_code

def command():
    if "late" in sys.argv:
        os.kill(os.getpid(), signal.SIGINT)
    try:
        if "early" in sys.argv:
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt as error:
        raise ImportError("numpy could not be imported") from error
    raise ImportError("it is not installed")

with exit_code() as end:
    command()
sys.exit(end.code)
"""


@pytest.mark.parametrize(("when", "code"), [("early", 130), ("late", 130), ("never", 1)])
def test_interrupts_that_libraries_convert(when, code):
    """Ctrl-C during an import that makes another error of it is Ctrl-C; without one, the error is shown."""
    done = subprocess.run([sys.executable, "-c", CONVERTED, when], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("interrupted; finished stages are kept" in done.stderr) == (code == 130)
    assert ("ImportError" in done.stderr) == (code == 1)


def test_inputs_larger_than_memory():
    """A file that names inputs of any size is bad input, without a traceback."""
    from pteforge.errors import InputError
    from pteforge.flows.cli.run import _random_inputs
    from pteforge.formats.pte.contents import Method, TensorSpec

    huge = Mock(spec=TensorSpec, dtype="float32", shape=(2**40, 2**10))
    method = Mock(spec=Method, inputs=(huge,))
    method.name = "forward"
    with pytest.raises(InputError, match="random inputs for 'forward'"):
        _random_inputs(method, 0)
