"""Memory of every stage that lowers a Llama of 127 million parameters, relative to its weights.

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from pteforge.artifacts.locations import open_store

ZOO = Path(__file__).parents[1] / "examples" / "llama" / "llama.yaml"
GIB = 1 << 30


@dataclass(frozen=True)
class Peaks:
    """Peak memory, in bytes.

    Attributes:
        stages: step name to memory of its worker process beyond the server that it was forked from.
        flow: resident memory of the process that runs the flow.
        weights: bytes of the model's parameters.
    """

    stages: dict[str, int]
    flow: int
    weights: int

    @property
    def bound(self) -> float:
        """The limit for a worker: 2.6 times the weights plus 1 GiB."""
        return 2.6 * self.weights + GIB


def measure(model: str, folder: Path) -> Peaks:
    """Lowers a model of the zoo from nothing.

    Args:
        model: name of the model.
        folder: an empty folder for store and results.
    """
    command = ["pteforge", "export", str(ZOO), "--model", model, "--store", str(folder / "store")]
    command += ["--out", str(folder / "out"), "--jobs", "1"]
    process = psutil.Popen(command, stdout=sys.stderr)
    flow = 0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        flow = max(flow, process.memory_info().rss)
        try:
            process.wait(0.2)
        except psutil.TimeoutExpired:
            continue
        break
    if process.returncode:
        sys.exit(f"pteforge ended with {process.returncode}")
    provenance = json.loads((folder / "out" / model / "chat.json").read_text(encoding="utf-8"))
    with open_store(str(folder / "store")) as store:
        records = {step: store.ledger.lookup(key) for step, key in provenance["stage_keys"].items()}
    return Peaks({step: record.peak_memory for step, record in records.items() if record}, flow, _weights(model))


def _weights(model: str) -> int:
    """Bytes of the parameters, counted in another process."""
    program = f"""
import sys, torch, yaml
sys.path.insert(0, {str(ZOO.parent)!r})
import small_llama
source = yaml.safe_load(open({str(ZOO)!r}))["models"][{model!r}]["source"]
kwargs = source.get("kwargs", {{}}) if isinstance(source, dict) else {{}}
module = small_llama.small_llama(**kwargs).methods["prefill"].module
print(sum(weight.numel() * weight.element_size() for weight in module.parameters()))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    """Prints a table; exits with 1 if a worker used more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="medium", help="a model of examples/llama/llama.yaml")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pteforge-memory-") as folder:
        peaks = measure(chosen.model, Path(folder))
    if chosen.json:
        print(json.dumps({"weights": peaks.weights, "flow": peaks.flow, "stages": peaks.stages}, indent=2))
    else:
        print(f"{'step':28} {'GiB':>6} {'x weights':>10}")
        for step, peak in (*peaks.stages.items(), ("the flow's own process", peaks.flow), ("bound", peaks.bound)):
            print(f"{step:28} {peak / GIB:6.2f} {peak / peaks.weights:10.2f}")
    if max(peaks.stages.values()) > peaks.bound:
        sys.exit(1)


if __name__ == "__main__":
    main()
