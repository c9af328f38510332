"""Fixtures of the key tests: trees of source files, and Python processes that see them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def write_tree(tmp_path):
    """Writes ``{relative path: text or bytes}`` under a folder, by default the test's own, and returns the folder."""

    def write(files: dict[str, str | bytes], folder: Path = tmp_path) -> Path:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return write


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a fresh Python process and returns what it printed last, read as JSON."""

    def run(program: str, *arguments: object, **environment: str) -> object:
        command, variables = [sys.executable, "-c", program, *map(str, arguments)], os.environ | environment
        options = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True, "timeout": 240}
        finished = subprocess.run(command, **options, check=False)
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout.splitlines()[-1])

    return run
