"""What is seen of the user's code's reading, and what keys have of it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes, digest_file
from pteforge.tasks.engine.keys import inputs
from pteforge.tasks.engine.keys.inputs import ALL_VARIABLES, Recorder, input_fields, recording

A, B = digest_bytes(b"a"), digest_bytes(b"b")
OUTSIDE = "../outside/c.bin"
WRITES = "with open('new.bin', 'wb') as file: file.write(b'b')\n"


@pytest.fixture
def zoo(write_tree, tmp_path, monkeypatch):
    """The current folder, with files, and one beside it; nothing in it is newer than what is heard."""
    files = {"a.bin": b"a", "sub/b.bin": b"b", "sub/deep/d.bin": b"d", "plugin.py": "with open('a.bin') as file: ..."}
    folder = write_tree(files, tmp_path / "zoo")
    write_tree({"outside/c.bin": b"c"}, tmp_path)
    monkeypatch.setattr(inputs, "_CLOCK", 0)
    monkeypatch.setenv("SET", "hunter2")
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    return folder


def run_as(file, code):
    """Runs text as if it were in a file, which need not exist."""
    exec(compile(code, str(file), "exec"), {"__name__": file.stem})  # noqa: S102 - reading it would be heard


@pytest.fixture
def hear(zoo):
    """Runs text as code of the user's; returns what was observed."""

    def run(code, arguments=None, declared=(), ignored=(), modules=()):
        recorder = Recorder(zoo, (zoo,), arguments, ignored, declared)
        with recording(recorder):
            run_as(zoo / "nets.py", code)
            return recorder.observed((), modules)

    return run


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('a.bin').close()", {"file:a.bin": A}),
        ("open('sub/../a.bin', 'rb').close()", {"file:a.bin": A}),
        ("import os; os.close(os.open('a.bin', os.O_RDONLY))", {"file:a.bin": A}),
        ("from pathlib import Path; Path('sub/b.bin').read_bytes()", {"file:sub/b.bin": B}),
        ("import numpy; numpy.memmap('a.bin', numpy.uint8)", {"file:a.bin": A}),
        ("import numpy; numpy.fromfile('a.bin', numpy.uint8)", {"file:a.bin": A}),
        ("import mmap\nwith open('a.bin', 'r+b') as file: mmap.mmap(file.fileno(), 0).close()", {"file:a.bin": A}),
        ("try: open('new.bin')\nexcept OSError: ...", {"file:new.bin": None}),
        ("import os; os.path.exists('new.bin')", {"file:new.bin": None}),
        ("import os; os.path.exists('sub')", {}),
        ("import plugin", {"file:a.bin": A, "file:plugin.py": None}),
        (f"open({OUTSIDE!r}).close()", {}),
        ("import json; json.__file__; open(json.__file__).close()", {}),
        (WRITES, {}),
        (WRITES + "open('new.bin').close()", {}),
        (
            "import os\nif not os.path.exists('new.bin'):\n    " + WRITES + "open('new.bin').close()",
            {"file:new.bin": B},
        ),
        ("import os\nif not os.path.exists('new.bin'):\n    " + WRITES, {}),
    ],
)
def test_files(hear, zoo, code, expected):
    """Files of the zoo's are inputs however they are read, as are those looked for; neither modules nor own files."""
    modules = {str(zoo / "plugin.py")}
    found = hear(code, modules=modules).inputs
    expected = {name: digest for name, digest in expected.items() if name != "file:plugin.py"}
    assert found == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os.listdir('sub')", {"folder:sub"}),
        ("import glob; glob.glob('sub/*.bin')", {"folder:sub"}),
        ("from pathlib import Path; list(Path('sub').iterdir())", {"folder:sub"}),
        ("import os; list(os.walk('sub'))", {"tree:sub", "folder:sub/deep"}),
        (f"import os; os.listdir({str(Path(OUTSIDE).parent)!r})", set()),
    ],
)
def test_folders(hear, zoo, code, expected):
    """The names in a folder that is listed count; in one that is gone through, so do those of its folders."""
    found = hear(code).inputs
    assert set(found) == expected
    before = input_fields(found, zoo, (), digest_file, {})
    (zoo / "sub" / "new").mkdir()
    trees = any(name.startswith("tree:") for name in expected)
    assert (input_fields(found, zoo, (), digest_file, {}) != before) == trees
    (zoo / "sub" / "new.bin").touch()
    assert (input_fields(found, zoo, (), digest_file, {}) != before) == bool(expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os.environ['SET']", {"env:SET"}),
        ("import os; os.environ.get('SET')", {"env:SET"}),
        ("import os; os.getenv('SET')", {"env:SET"}),
        ("import os; os.environb[b'SET']", {"env:SET"}),
        ("from os import environ; 'UNSET' in environ", {"env:UNSET"}),
        ("import os; os.getenv('UNSET', 'default')", {"env:UNSET"}),
        ("import os; os.environ['UNSET'] = '1'; os.environ['UNSET']", set()),
        ("import os; os.environ.setdefault('UNSET', '1')", {"env:UNSET"}),
        ("import tempfile; tempfile._candidate_tempdir_list()", {"env:TMPDIR", "env:TEMP", "env:TMP"}),
        ("import os; os.environ['PYTHONHASHSEED'] if 'PYTHONHASHSEED' in os.environ else 0", set()),
    ],
)
def test_variables(hear, monkeypatch, code, expected):
    """Environment variables that the code looks up are inputs, set or not; not those that it sets first."""
    monkeypatch.delenv("UNSET", raising=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSET", "")
        patch.delenv("UNSET")  # so that what the code sets is undone
        observed = hear(code)
    assert set(observed.inputs) == expected
    assert not observed.unwatched


def test_all_variables_at_once(hear):
    """A copy of all variables makes none of them an input, and is told; lookups elsewhere still count."""
    observed = hear("import os; env = dict(os.environ)\nos.environ['SET']")
    assert set(observed.inputs) == {"env:SET"}
    assert observed.unwatched == (ALL_VARIABLES,)


def test_values_stay_out_of_records(hear, zoo, monkeypatch):
    """Neither what is stored nor a key has a variable's value, or a digest of it that is quick to guess from."""
    observed = hear("import os; os.environ['SET']")
    fields = input_fields(observed.inputs, zoo, (), digest_file, {})
    stored = observed.encode().decode() + str(fields)
    assert "hunter2" not in stored
    assert digest_bytes(b"hunter2") not in stored
    monkeypatch.setenv("SET", "hunter3")
    assert input_fields(observed.inputs, zoo, (), digest_file, {})["environment"].keys() == {"SET"}
    assert input_fields(observed.inputs, zoo, (), digest_file, {}) != fields


def test_files_elsewhere(hear, zoo):
    """A file elsewhere is an input if an argument names it or a folder above it, and is told otherwise."""
    path = str((zoo / OUTSIDE).resolve())
    reads = f"open({OUTSIDE!r}).close()"
    assert hear(reads).unwatched == (path,)
    assert hear(reads, ignored=[(zoo / "../outside").resolve()]).unwatched == ()
    for arguments in ({"path": OUTSIDE}, {"folders": [{"of": "../outside"}]}, path):
        observed = hear(reads, arguments)
        assert observed.inputs == {f"file:{path}": digest_bytes(b"c")}
        assert observed.unwatched == ()
    assert input_fields(observed.inputs, zoo, (), digest_file, {}) == {"read": {"c.bin": digest_bytes(b"c")}}


def test_lists_of_installed_files_are_not_heard(hear, tmp_path, monkeypatch):
    """Whose code is running is found out by reading what packages list, wherever they are: that is no one's input."""
    listed = tmp_path / "packages" / "fresh-1.0.dist-info" / "RECORD"
    listed.parent.mkdir(parents=True)
    listed.write_text("fresh/__init__.py,,\n")
    monkeypatch.syspath_prepend(listed.parents[1])
    package = "exec(compile({!r}, '/lib/site-packages/fresh/read.py', 'exec'), {{'__name__': 'fresh'}})"
    observed = hear(package.format("open('a.bin').close(); import os; os.environ.get('WIDTH')"))
    assert observed.inputs == {"file:a.bin": A}
    assert observed.unwatched == ()


def test_files_that_arguments_name_count_unseen(hear, zoo):
    """Native code may read a file that an argument names without Python's hearing of it; a missing one is no input."""
    assert hear("", ["a.bin", OUTSIDE, "sub", "tiny", "nul\0", "~nobody-of-this-name/x"]).inputs.keys() == {
        "file:a.bin",
        f"file:{(zoo / OUTSIDE).resolve()}",
    }


def test_declared_files_are_in_the_key_once(hear, zoo):
    """What is declared is no input, and what was watched before it was declared leaves the fields."""
    assert hear("open('a.bin').close()", declared=[zoo / "a.bin"]).inputs == {}
    found = hear("open('a.bin').close(); open('sub/b.bin').close()").inputs
    assert input_fields(found, zoo, [zoo / "a.bin"], digest_file, {}) == {"read": {"sub/b.bin": B}}


def test_files_that_change_while_they_are_read(hear):
    """The digest is one that no file has, so the result is never found for either content."""
    (found,) = hear("open('a.bin').close(); import os; os.rename('sub/b.bin', 'a.bin')").inputs.values()
    assert found not in (A, B, None)


def test_what_is_gone_or_appears(hear, zoo):
    """A file that goes, or one that was looked for and appears, changes the fields, and back."""
    found = hear("import os; os.path.exists('new.bin'); open('a.bin').close()").inputs
    before = input_fields(found, zoo, (), digest_file, {})
    assert before == input_fields(found, zoo, (), digest_file, found) == {"read": {"a.bin": A}}
    (zoo / "new.bin").write_bytes(b"b")
    assert input_fields(found, zoo, (), digest_file, {}) == {"read": {"a.bin": A, "new.bin": B}}
    (zoo / "a.bin").rename("new.bin")
    assert input_fields(found, zoo, (), digest_file, {}) == {"read": {"new.bin": A}}
    (zoo / "new.bin").rename("a.bin")
    assert input_fields(found, zoo, (), digest_file, {}) == before


def test_moving_a_zoo(zoo, tmp_path):
    """Names of inputs are relative to the zoo's folder, whichever way it is reached."""
    (tmp_path / "link").symlink_to(zoo)
    for folder in (zoo, tmp_path / "link"):
        recorder = Recorder(folder, (folder, tmp_path / "outside"), {}, ())
        with recording(recorder):
            code = "\n".join(f"open({str(path)!r}).close()" for path in (zoo / "a.bin", folder / "sub/b.bin", OUTSIDE))
            run_as(folder / "nets.py", code)
        assert recorder.observed((), ()).inputs.keys() == {"file:a.bin", "file:sub/b.bin", "file:../outside/c.bin"}


IN_A_POOL = """
from concurrent.futures import ThreadPoolExecutor
pool = globals().get("pool") or ThreadPoolExecutor(1)
pool.submit(lambda: open(name).close()).result()
"""


def test_other_threads(zoo):
    """Threads of the user's code are heard, in later recordings, too; those that ran before, as leases' do, are not."""

    def names_of(space, name):
        recorder = Recorder(zoo, (zoo,), {}, ())
        space["name"] = name
        with recording(recorder):
            exec(IN_A_POOL, space)  # noqa: S102 - as the user's code
        return set(recorder.observed((), ()).inputs)

    users = {}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(os.getpid).result()
        assert names_of({"pool": pool}, "a.bin") == set()
        assert names_of(users, "a.bin") == {"file:a.bin"}
        assert names_of(users, "sub/b.bin") == {"file:sub/b.bin"}
    users["pool"].shutdown()


def test_nothing_is_heard_afterwards(hear):
    """What records is gone when the context ends: the class of `os.environ`, `os.stat`."""
    before = (type(os.environ), os.stat)
    hear("open('a.bin').close()")
    assert (type(os.environ), os.stat) == before
