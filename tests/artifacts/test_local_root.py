"""Which folders are accepted as local stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pteforge.artifacts.local_store import LocalStore
from pteforge.errors import InputError, StoreUnusable


def test_new_store_is_private(tmp_path):
    """A store that we make, and what lies in it, is for its owner only, and opens again, whatever the umask."""
    umask = os.umask(0o002)
    try:
        store = LocalStore.open(tmp_path / "deep" / "store")
        store.put_bytes(b"weights")
        LocalStore.open(store.root)
    finally:
        os.umask(umask)
    assert store.root.stat().st_mode & 0o077 == 0
    assert (store.root / "objects").stat().st_mode & 0o077 == 0
    assert (store.root / "version").read_bytes() == b"pteforge store 1\n"


@pytest.mark.parametrize("folder", [".", "objects", "ledger"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_store_that_others_can_write_is_refused(tmp_path, folder, mode):
    """Whoever could put a pickle into the store could run code as us."""
    root = tmp_path / "store"
    LocalStore.open(root)
    (root / folder).mkdir(exist_ok=True)
    (root / folder).chmod(mode)
    with pytest.raises(StoreUnusable, match="chmod -R go-w") as caught:
        LocalStore.open(root)
    assert isinstance(caught.value, InputError)
    (root / folder).chmod(0o755)
    LocalStore.open(root)


def test_store_of_somebody_else_is_refused(tmp_path):
    """A folder that belongs to another user is not used."""
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(root, 12345, -1)
    else:
        root = Path("/")
    with pytest.raises(StoreUnusable, match="belongs to user"):
        LocalStore.open(root)


def test_folder_with_other_things_is_refused(tmp_path):
    """A folder in which something else lies is not made a store of."""
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreUnusable, match=r"thesis\.tex"):
        LocalStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_root_of_a_volume_is_accepted(tmp_path):
    """The folder that every ext4 volume begins with is no reason to refuse it."""
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir()
    LocalStore.open(tmp_path)


def test_other_layout_is_refused(tmp_path):
    """A store that another version made is left alone."""
    LocalStore.open(tmp_path / "store")
    (tmp_path / "store/version").chmod(0o644)
    (tmp_path / "store/version").write_text("pteforge store 2\n")
    with pytest.raises(StoreUnusable, match="another layout"):
        LocalStore.open(tmp_path / "store")


@pytest.mark.parametrize("root", ["file", "file/store", "/proc/pteforge"])
def test_impossible_folders(tmp_path, root):
    """A root that cannot be made is the user's to choose anew."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnusable, match=r"cannot be opened.*--store"):
        LocalStore.open(tmp_path / root)
