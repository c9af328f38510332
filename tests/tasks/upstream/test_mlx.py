"""The modules that ExecuTorch's wheel lacks are made once, whole, by whoever needs them first, outside of the wheel."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.upstream.mlx import _wheel, generated_package

MODULE = "mlx_graph_schema.py"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "generated"


def make(cache) -> Path:
    return generated_package(_wheel(), cache)


def test_made_once(cache):
    """A second call finds what the first one made, and makes nothing; others cannot write it, whatever the umask is."""

    def files(folder):
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}

    package = _wheel() / "backends" / "mlx"
    wheel_files = files(package)
    umask = os.umask(0)
    try:
        folder = make(cache)
    finally:
        os.umask(umask)
    assert folder.name.startswith(f"mlx-{importlib.metadata.version('executorch')}-")
    made = files(folder)
    assert folder / MODULE in made
    assert make(cache) == folder
    assert files(folder) == made
    assert list((cache / "tmp").iterdir()) == []
    assert [path.stat().st_mode & 0o022 for path in (cache, folder)] == [0, 0]
    assert files(package) == wheel_files


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MODULE).write_text(""),
        lambda folder: (folder / MODULE).unlink(),
        lambda folder: (folder / "another.py").write_text(""),
        lambda folder: (folder / "digests.json").unlink(),
        lambda folder: (folder / "digests.json").write_text("{"),
        # A maker that was killed left its scratch folder, and nothing else.
        lambda folder: ((folder / "digests.json").unlink(), (folder.parent / "tmp/0.scratch").mkdir()),
    ],
    ids=["cut", "removed", "added", "no-digests", "cut-digests", "killed"],
)
def test_made_again_where_damaged(cache, damage):
    """A folder that is not as it was made is not used but made again."""
    folder = make(cache)
    sound = (folder / MODULE).read_bytes()
    damage(folder)
    assert make(cache) == folder
    assert (folder / MODULE).read_bytes() == sound
    assert not (folder / "another.py").exists()
    assert list((cache / "tmp").iterdir()) == []


def test_another_generator_is_another_folder(cache, tmp_path):
    """The folder's name says what its content was made from."""
    wheel, package = tmp_path / "executorch", "backends/mlx/serialization"
    for part in (package, "data/bin"):
        (wheel / part).parent.mkdir(parents=True, exist_ok=True)
        (wheel / part).symlink_to(_wheel() / part)
    assert generated_package(wheel, cache) == make(cache)
    (wheel / package).unlink()
    (wheel / package).mkdir()
    for path in (_wheel() / package).glob("*.*"):
        (wheel / package / path.name).write_bytes(path.read_bytes() + b"\n")
    assert generated_package(wheel, cache) != make(cache)


def test_a_generator_that_fails(cache, tmp_path):
    """The error has its output, and nothing is left behind."""
    wheel = tmp_path / "executorch"
    package = wheel / "backends/mlx/serialization"
    package.mkdir(parents=True)
    (package / "generate.py").write_text("raise SystemExit('no schema today')\n")
    (wheel / "data/bin").mkdir(parents=True)
    (wheel / "data/bin/flatc").touch()
    with pytest.raises(TargetError, match=r"MLX compiler's modules failed(?s:.*)no schema"):
        generated_package(wheel, cache)
    assert [path.name for path in cache.iterdir()] == ["tmp"]
    assert list((cache / "tmp").iterdir()) == []


def test_caches_that_cannot_be_used(cache, tmp_path):
    """Nothing is imported from a folder in which others could have put it."""
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(TargetError, match="can be written by others"):
        make(cache)
    cache.rmdir()
    cache.parent.rmdir()
    cache.parent.write_text("a file")
    done = python("from pteforge.tasks.upstream.mlx import make_importable; make_importable()", tmp_path)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert str(cache.parent) in message
    assert "set PTEFORGE_CACHE to a folder that can be written" in message


def test_many_at_once(cache):
    """Processes that start together all get the same sound folder."""
    program = (
        "import sys; from pathlib import Path\n"
        "from pteforge.tasks.upstream.mlx import _is_sound, _wheel, generated_package\n"
        "sys.stdin.read()\n"
        "folder = generated_package(_wheel(), Path(sys.argv[1]))\n"
        "assert _is_sound(folder)\n"
        "print(folder)"
    )
    command = [sys.executable, "-c", program, str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(command, **pipes, text=True) for _ in range(6)]
    for process in processes:
        process.stdin.close()
        process.stdin = None
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert answers == {str(make(cache))}
    assert [process.returncode for process in processes] == [0] * 6
    assert list((cache / "tmp").iterdir()) == []


def test_without_the_compiler(tmp_path):
    """An ExecuTorch without MLX is reported before anything starts, and nothing is imported to find out."""
    (tmp_path / "executorch").mkdir()
    (tmp_path / "executorch" / "__init__.py").write_text("raise AssertionError('imported')\n")
    program = (
        "import json, sys; sys.path.insert(0, '.')\n"
        "from pteforge.tasks.targets import find_target\n"
        "print(json.dumps(type(find_target('mlx')).available()))"
    )
    done = python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "has no MLX compiler" in json.loads(done.stdout)
    assert str(tmp_path) in json.loads(done.stdout)


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program there, with the cache in `cache`."""
    environment = os.environ | {"PTEFORGE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
