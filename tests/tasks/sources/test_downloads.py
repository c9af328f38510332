"""Downloads from the hub that are interrupted: the next run fetches what is missing, and nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from threading import Event, Semaphore

from pteforge.tests.artifacts.hub_server import run_hub

HEADER = b'{"weight": {"data_offsets": [0, 100000]}}'
SHARDS = {
    f"model-{number}.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + bytes([0, number]) * 50_000
    for number in range(4)
}
INDEX = {"weight_map": {f"layers.{number}": name for number, name in enumerate(SHARDS)}}
FILES = {
    "config.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
}
FINISHED = {"config.json", "model.safetensors.index.json", "model-0.safetensors", "model-1.safetensors"}

# The hub's client reads its settings when it is imported.
FIND = """
from pathlib import Path
from pteforge.configs.sources import HuggingFaceSource
from pteforge.tasks.sources.find import find_source
print(*(path.name for path in find_source(HuggingFaceSource(huggingface="org/large"), Path.cwd()).files))
"""


def test_a_killed_download_continues(tmp_path):
    """Shards that were whole when a download was killed are not fetched again; the others are, by the next run."""
    sent, asked, release = Counter[str](), Semaphore(0), Event()

    def before(name: str) -> None:
        sent[name] += 1
        asked.release()
        if name not in FINISHED:
            release.wait(60)

    with run_hub() as hub:
        hub.repositories["org/large"] = {"main": [FILES]}
        hub.before_file = before
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": "1",
        }
        command = [sys.executable, "-c", FIND]
        killed = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        for _ in FILES:
            assert asked.acquire(timeout=60)
        while len([*(tmp_path / "hub").glob("*/snapshots/*/*")]) < len(FINISHED):
            assert killed.poll() is None
        killed.kill()
        killed.wait()
        release.set()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == sorted(FILES), done.stderr
    assert sent == Counter([*FILES, *(FILES.keys() - FINISHED)])
