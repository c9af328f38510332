"""Prefect's settings in runs on one machine."""

from __future__ import annotations

import os
import ssl

from pteforge.flows.prefect_settings import local_run


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
