"""The modules that ExecuTorch's wheel lacks are made once, whole, by whoever needs them first, outside of the wheel."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets.mlx_serialization import _wheel, generated_package

MODULE = "mlx_graph_schema.py"


@pytest.fixture
def cache(tmp_path):
    """Where generated code goes."""
    return tmp_path / "cache" / "generated"


def make(cache) -> Path:
    """The generated package."""
    return generated_package(_wheel(), cache)


def test_made_once(cache):
    """A second call finds what the first one made, and makes nothing."""
    folder = make(cache)
    assert folder.name.startswith(f"mlx-{importlib.metadata.version('executorch')}-")
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert folder / MODULE in made
    assert make(cache) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == made
    assert list((cache / "tmp").iterdir()) == []


def test_other_users_cannot_write(cache):
    """Whatever the umask is, what is imported can be written by its owner only."""
    before = os.umask(0)
    try:
        folder = make(cache)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o022 for path in (cache, folder)] == [0, 0]


def test_wheel_stays_as_it_is(cache):
    """The generator writes beside itself, so it runs on a copy."""
    package = _wheel() / "backends" / "mlx" / "serialization"
    before = {path: path.stat().st_mtime_ns for path in package.parent.rglob("*") if "__pycache__" not in path.parts}
    make(cache)
    assert before == {
        path: path.stat().st_mtime_ns for path in package.parent.rglob("*") if "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MODULE).write_text(""),
        lambda folder: (folder / MODULE).unlink(),
        lambda folder: (folder / "another.py").write_text(""),
        lambda folder: (folder / "digests.json").unlink(),
        lambda folder: (folder / "digests.json").write_text("{"),
    ],
    ids=["cut", "removed", "added", "no-digests", "cut-digests"],
)
def test_made_again_where_damaged(cache, damage):
    """What is not as it was made is not used but made again."""
    folder = make(cache)
    sound = (folder / MODULE).read_bytes()
    damage(folder)
    assert make(cache) == folder
    assert (folder / MODULE).read_bytes() == sound
    assert not (folder / "another.py").exists()
    assert list((cache / "tmp").iterdir()) == []


def test_another_generator_is_another_folder(cache, tmp_path):
    """The folder's name says what its content was made from."""
    wheel = tmp_path / "executorch"
    for part in ("backends/mlx/serialization", "data/bin"):
        (wheel / part).parent.mkdir(parents=True, exist_ok=True)
        (wheel / part).symlink_to(_wheel() / part)
    assert generated_package(wheel, cache) == make(cache)
    (wheel / "backends/mlx/serialization").unlink()
    (wheel / "backends/mlx/serialization").mkdir()
    for path in (_wheel() / "backends/mlx/serialization").glob("*.*"):
        (wheel / "backends/mlx/serialization" / path.name).write_bytes(path.read_bytes() + b"\n")
    assert generated_package(wheel, cache) != make(cache)


def test_a_generator_that_fails(cache, tmp_path):
    """What it wrote is told, and nothing is left behind."""
    wheel = tmp_path / "executorch"
    package = wheel / "backends/mlx/serialization"
    package.mkdir(parents=True)
    (package / "generate.py").write_text("raise SystemExit('no schema today')\n")
    (wheel / "data/bin").mkdir(parents=True)
    (wheel / "data/bin/flatc").touch()
    with pytest.raises(TargetError, match=r"generator of the MLX compiler's modules failed(?s:.*)no schema today"):
        generated_package(wheel, cache)
    assert [path.name for path in cache.iterdir()] == ["tmp"]
    assert list((cache / "tmp").iterdir()) == []


def test_a_cache_that_others_can_write(cache):
    """Nothing is imported from a folder in which others could have put it."""
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(TargetError, match="can be written by others"):
        make(cache)


def test_a_cache_that_cannot_be_written(tmp_path):
    """The error names the folder and the variable that says where it is."""
    (tmp_path / "cache").write_text("a file")
    done = python("from pteforge.tasks.targets.mlx_serialization import make_importable; make_importable()", tmp_path)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert str(tmp_path / "cache") in message
    assert "set PTEFORGE_CACHE to a folder that can be written" in message


def test_many_at_once(cache):
    """Processes that start together all get the same sound folder."""
    program = (
        "import sys; from pathlib import Path\n"
        "from pteforge.tasks.targets.mlx_serialization import _is_sound, _wheel, generated_package\n"
        "sys.stdin.read()\n"
        "folder = generated_package(_wheel(), Path(sys.argv[1]))\n"
        "assert _is_sound(folder)\n"
        "print(folder)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for process in processes:
        process.stdin.close()
        process.stdin = None
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert answers == {str(make(cache))}
    assert [process.returncode for process in processes] == [0] * 6
    assert list((cache / "tmp").iterdir()) == []


def test_what_a_killed_process_left_is_removed(cache):
    """Scratch of a maker that is dead goes when the next one makes something."""
    folder = make(cache)
    (cache / "tmp" / "0.scratch").mkdir()
    (folder / "digests.json").unlink()
    make(cache)
    assert list((cache / "tmp").iterdir()) == []


def test_without_the_compiler(tmp_path):
    """An ExecuTorch without MLX is told before anything starts, and nothing is imported to find out."""
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
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PTEFORGE_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
