"""Checking a .pt2 file without torch."""

import zipfile

import pytest
from pteforge.errors import SourceError
from pteforge.tasks.keys.program_file import check_program_file

# Torch is imported, and exports and traces a module.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # people still have such files
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files that torch writes: an exported program, a state dict, a scripted module."""
    import torch

    folder = tmp_path_factory.mktemp("saved")
    module = torch.nn.Linear(64, 64)
    program = torch.export.export(module, (torch.ones(1, 64),))
    torch.export.save(program, folder / "linear.pt2", extra_files={"note.txt": "hello"})
    torch.save(module.state_dict(), folder / "weights.pt2")
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 64)), folder / "script.pt2")
    return folder


def problem_of(path):
    """The message that refuses a file."""
    with pytest.raises(SourceError) as caught:
        check_program_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_saved_program_is_accepted(saved, tmp_path):
    """What torch.export.save writes passes, also after it was renamed."""
    check_program_file(saved / "linear.pt2")
    (tmp_path / "renamed.pt2").write_bytes((saved / "linear.pt2").read_bytes())
    check_program_file(tmp_path / "renamed.pt2")


def test_every_damaged_weight_is_found(saved, tmp_path):
    """One flipped bit in a weight is refused, and the message names the member."""
    content = bytearray((saved / "linear.pt2").read_bytes())
    with zipfile.ZipFile(saved / "linear.pt2") as archive:
        weight = max(archive.infolist(), key=lambda member: member.file_size)
    content[weight.header_offset + 3000] ^= 1
    (tmp_path / "flipped.pt2").write_bytes(content)
    problem = problem_of(tmp_path / "flipped.pt2")
    assert "damaged" in problem
    assert weight.filename in problem


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_cut_off_file_is_refused(saved, tmp_path, kept):
    """A file whose copying was interrupted is refused."""
    content = (saved / "linear.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(content[: int(len(content) * kept)])
    assert "damaged or no .pt2 file" in problem_of(tmp_path / "cut.pt2")


def test_other_files_are_refused_with_what_they_are(saved, tmp_path):
    """State dicts and TorchScript files are told apart from exported programs; so is any other archive."""
    assert "state dict" in problem_of(saved / "weights.pt2")
    assert "TorchScript" in problem_of(saved / "script.pt2")
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("a/b", "c")
    assert "not one that torch.export.save writes" in problem_of(tmp_path / "other.pt2")
    zipfile.ZipFile(tmp_path / "empty.pt2", "w").close()
    assert "not one that torch.export.save writes" in problem_of(tmp_path / "empty.pt2")


def test_package_without_a_program_is_refused(tmp_path):
    """A compiled package has the same form but no program in it."""
    with zipfile.ZipFile(tmp_path / "compiled.pt2", "w") as archive:
        archive.writestr("p/archive_format", "pt2")
        archive.writestr("p/data/aotinductor/model/model.so", "")
    assert "holds no exported program" in problem_of(tmp_path / "compiled.pt2")


def test_missing_file_and_folder_are_refused(tmp_path):
    """A path that is no file says so."""
    assert "there is no program file" in problem_of(tmp_path / "missing.pt2")
    assert "there is no program file" in problem_of(tmp_path)


def test_torch_is_not_imported(saved, run_python):
    """The check runs in the main process, which must stay light."""
    program = (
        "import json, sys; from pathlib import Path; from pteforge.tasks.keys.program_file import check_program_file; "
        "check_program_file(Path(sys.argv[1])); print(json.dumps('torch' in sys.modules))"
    )
    assert run_python(program, saved / "linear.pt2") is False
