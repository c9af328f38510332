"""Runs several instances of a program in threads: `instances.py BUILD PROGRAM CALLS.pt` says how many agree."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pteforge_nfat
import torch
from executorch.runtime import Runtime, Verification

_THREADS = 4
_CALLS = 25


def outputs(path: Path, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """What an instance of its own gives, call by call."""
    method = Runtime.get().load_program(path, verification=Verification.Minimal).load_method("forward")
    assert method is not None
    return [output.clone() for _ in range(_CALLS) for output in method.execute(inputs)]


def main(build: Path, path: Path, calls: Path) -> None:
    """Compares what threads get with what one instance got before."""
    pteforge_nfat.load(build)
    inputs = torch.load(calls)["forward"][0]
    alone = outputs(path, inputs)
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(lambda _: outputs(path, inputs), range(_THREADS)))
    print(sum(all(map(torch.equal, alone, each)) for each in results), "of", _THREADS, "equal")  # noqa: T201  # the result


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
