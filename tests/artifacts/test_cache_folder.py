"""Where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pteforge.artifacts.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "home/.cache/pteforge"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/pteforge"),
        ({"PTEFORGE_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own"),
        ({"PTEFORGE_CACHE": "~/own"}, "home/own"),
        ({"PTEFORGE_CACHE": "", "XDG_CACHE_HOME": ""}, "home/.cache/pteforge"),
    ],
)
def test_order(environment, folder, tmp_path, monkeypatch):
    """Our own variable comes first, then the desktop's, then the home folder; relative ones are from where one is."""
    for name in ("PTEFORGE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path / "home"), **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == Path(tmp_path / folder)
