"""Stages of one payload share a worker process, which changes no result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pteforge.tasks.executor import PROCESSES_VARIABLE
from pteforge.tasks.workers import Workers
from pteforge.tasks.workers.call import HeldProcess

STARTER = Path(__file__).parents[2] / "examples" / "zoo" / "starter.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_same_results_from_fewer_processes(tmp_path, make_project, lower, monkeypatch):
    """The starter zoo's files, and the keys of all stages, which contain the digests of all programs, are the same."""
    forked: list[str] = []
    fork = HeldProcess.fork

    def count_forks(process: HeldProcess, call_fds: list[int]) -> None:
        forked.append(kind)
        fork(process, call_fds)

    monkeypatch.setattr(HeldProcess, "fork", count_forks)
    made = []
    with Workers(jobs=4) as pool:
        for kind in ("shared", "fresh"):
            monkeypatch.setenv(PROCESSES_VARIABLE, kind)
            project = make_project(tmp_path / kind)
            project.write("zoo.yaml", STARTER.read_text())
            assert lower(project, pool=pool).outcome.exit_code == 0
            files = project.files()
            provenances = [json.loads(content) for name, content in sorted(files.items()) if name.endswith(".json")]
            made.append(({name: content for name, content in files.items() if name.endswith(".pte")}, provenances))
            assert len(provenances) == len(made[-1][0]) == 12
    (shared, provenances), (fresh, others) = made
    assert shared == fresh
    assert [each["stage_keys"] for each in provenances] == [each["stage_keys"] for each in others]
    assert forked.count("fresh") == 58
    assert forked.count("shared") < 58
