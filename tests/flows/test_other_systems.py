"""A system other than Linux, as far as it can be imitated: no /proc, no prctl, no fork, another `sys.platform`."""

import os
import sys
from pathlib import Path

import pteforge
import pytest
from pteforge.tests.conftest import run_process

IMITATION = """
import os, sys
from importlib.machinery import SourceFileLoader

ROOT = os.environ["PTEFORGE_TEST_ROOT"]


def is_ours(file):
    return file.startswith(ROOT) and "site-packages" not in file


class Elsewhere(SourceFileLoader):
    def get_code(self, name):  # libraries read the platform as well, and would look for their files for it
        path = self.get_filename(name)
        if not is_ours(path):
            return get_code(self, name)
        return self.source_to_code(self.get_data(path).replace(b"sys.platform", b'"darwin"'), path)


def ours_asks():
    frame = sys._getframe(2)
    while frame and "site-packages" not in frame.f_code.co_filename:
        if is_ours(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def refuse(event, args):
    if event in ("open", "os.listdir", "os.scandir"):
        if isinstance(args[0], str) and args[0].startswith(("/proc", "/sys/")) and ours_asks():
            raise FileNotFoundError(2, "no such file here", args[0])
    elif event == "os.fork" and ours_asks():
        raise RuntimeError("fork")
    elif event == "ctypes.dlsym" and args[1] == "prctl":
        raise AttributeError("prctl")


get_code = SourceFileLoader.get_code
SourceFileLoader.get_code = Elsewhere.get_code
sys.addaudithook(refuse)
"""


@pytest.fixture
def there(tmp_path):
    """The environment of a process for which this is another system."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(IMITATION)
    root = f"{Path(pteforge.__file__).parent}{os.sep}"
    return {"PYTHONPATH": str(folder), "PTEFORGE_TEST_ROOT": root, "ATEN_CPU_CAPABILITY": "default"}


def test_modules_are_imported_and_commands_start(project, there):
    """Whatever is imported without torch can be, and a command that lowers nothing ends as on Linux."""
    imports = "import pteforge.flows.cli, pteforge.artifacts.remote_files, pteforge.tasks.engine.workers.server"
    said = run_process(sys.executable, "-c", imports, env={**os.environ, **there}, timeout=120)
    assert (said.returncode, said.stderr) == (0, "")
    project.write_zoo({"linear": "nets:linear"}, ("xnnpack-fp32",))
    planned = project.run("plan", "zoo.yaml", "--json", env=there)
    assert (planned.code, planned.err) == (3, "")


@pytest.mark.nightly
def test_files_are_lowered_and_run(project, there):
    """A zoo is lowered, and its files are verified and run; to Linux, they are those that it would have made itself."""
    project.write_zoo({"linear": "nets:linear"}, ("xnnpack-fp32",))
    said = project.run("export", "zoo.yaml", env=there)
    assert said.code == 0, said.err
    assert "1 file verified in out; 8 stages run" in said.out
    file = project.out / "linear" / "xnnpack-fp32.pte"
    for command in (("run", file), ("verify", project.out)):
        said = project.run(*map(str, command), env=there)
        assert said.code == 0, (command, said.err)
    here = {"ATEN_CPU_CAPABILITY": "default"}
    assert "0 stages run, 8 cached" in project.run("export", "zoo.yaml", env=here).out
    made = file.read_bytes()
    assert "8 stages run, 0 cached" in project.run("export", "zoo.yaml", "--refresh", env=here).out
    assert file.read_bytes() == made
