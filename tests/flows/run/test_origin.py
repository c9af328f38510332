"""Versions and commits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pteforge import __version__
from pteforge.flows.run.origin import version_in


def git(folder: Path, *arguments: str) -> str:
    """Runs git as somebody; returns what it prints."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_version_of_a_clone(tmp_path, monkeypatch):
    """A clone that is ahead of its release, or differs from it, names the commit; a release and an installation do not.

    So does one on a machine without git.
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("1")
    assert version_in(tmp_path / "a") == __version__
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        git(tmp_path, *command)
    commit = git(tmp_path, "rev-parse", "HEAD")
    untagged = version_in(tmp_path)
    assert re.fullmatch(r"\S+\+g[0-9a-f]{7,40}", untagged)
    assert commit.startswith(untagged.removeprefix(f"{__version__}+g"))
    assert version_in(tmp_path / "a") == __version__  # installed below somebody's repository
    git(tmp_path, "tag", f"v{__version__}")
    assert version_in(tmp_path) == __version__
    (tmp_path / "a" / "file").write_text("2")
    assert version_in(tmp_path) == f"{untagged}.dirty"
    git(tmp_path, "commit", "-qam", "two")
    ahead = version_in(tmp_path)
    assert ahead not in {__version__, untagged}
    assert git(tmp_path, "rev-parse", "HEAD").startswith(ahead.removeprefix(f"{__version__}+g"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version_in(tmp_path) == __version__


@pytest.mark.parametrize("text", ["gitdir: nowhere", ""])
def test_version_of_a_broken_clone(tmp_path, text):
    """A repository that git cannot read has the version of the package."""
    (tmp_path / ".git").write_text(text)
    assert version_in(tmp_path) == __version__
