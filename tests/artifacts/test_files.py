"""Staging files among files of other kinds."""

from __future__ import annotations

from pteforge.artifacts.files import remove_abandoned_files, staging_file


def test_abandoned_files_are_removed(tmp_path):
    """What a dead process was writing goes; what another one is writing, and what only looks like it, stays."""
    (tmp_path / f"{'0a' * 16}.part").write_bytes(b"half a file")
    (tmp_path / "model.part").write_bytes(b"a user's")
    with staging_file(tmp_path) as (path, _file):
        remove_abandoned_files(tmp_path)
        assert {each.name for each in tmp_path.iterdir()} == {path.name, "model.part"}
    remove_abandoned_files(tmp_path / "missing")
