"""Prefect's settings in runs on one machine."""

from __future__ import annotations

import json
import os
import ssl

from pteforge.flows.prefect.settings import local_run, redact_workspaces


def test_one_certificate_for_all_runs(monkeypatch, tmp_path):
    """All runs share one file of one certificate in Prefect's home, so that killed ones leave no files behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = set()
    for _ in range(2):
        with local_run("http://127.0.0.1:1/api"):
            files.add(os.environ["PREFECT_API_SSL_CERT_FILE"])
            assert list(tmp_path.iterdir()) == []
    assert files == {os.path.join(os.environ["PREFECT_HOME"], "pteforge.pem")}  # noqa: PTH118 - as it is written
    assert len(ssl.create_default_context(cafile=files.pop()).get_ca_certs()) == 1


def test_redacted_workspaces(monkeypatch, tmp_path):
    """Workspace files of our flows lose their environment, those of killed workers too; those of others stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = {}
    for name, entrypoint in (("a", "pteforge.flows.prefect.zoo_flow.export_zoo"), ("b", "flows.py:other"), ("c", None)):
        files[name] = tmp_path / f"prefect-workspace-attempt-{name}" / "workspace.json"
        files[name].parent.mkdir()
        manifest = {"runtime_entrypoint": entrypoint, "environment": {"SECRET": "s3cr3t"}, "hook_command": ["python"]}
        files[name].write_text(json.dumps(manifest) if entrypoint else "no JSON")
    redact_workspaces()
    assert json.loads(files["a"].read_text())["environment"] == {}
    assert "s3cr3t" in files["b"].read_text()
    assert files["c"].read_text() == "no JSON"
