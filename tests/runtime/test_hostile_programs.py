"""Fat programs, good and bad ones, under sanitizers."""

import os
import random
import subprocess

import pytest
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.faults.fuzzing import build_fuzzer, fuzz_containers
from pteforge.tests.mutations import mutate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_COUNT = 1000
"""Mutations of each container."""


def test_all_programs(sanitized, programs, tmp_path):
    """No program, however bad, makes a sanitizer report anything or leaks memory in the C++ host."""
    (tmp_path / "input").write_bytes(os.urandom(4 * 64 * 4))
    codes = {}
    for program in sorted(programs.glob("*.pte")):
        command = [sanitized / "runtime" / "nfat_run", program, "forward", f"4x64:{tmp_path / 'input'}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        assert "Sanitizer" not in done.stderr, f"{program.name}: {done.stderr}"
        assert "runtime error:" not in done.stderr, f"{program.name}: {done.stderr}"
        codes[program.stem] = done.returncode
    assert set(codes.values()) == {0, 1}
    assert (codes["v1"], codes["v2"], codes["v2-damaged-first"], codes["v2-none-fits"]) == (0, 0, 0, 1)


@pytest.mark.parametrize(("name", "first"), [("v1", "XnnpackBackend"), ("v2", "xnnpack")])
def test_mutations(programs, opened, name, first):
    """The backend runs an intact payload of a real container that was tampered with, or none."""
    content = (programs / f"{name}.pte").read_bytes()
    start = content.index(b"NFAT" + bytes([int(name[1]), 0, 0, 0]))
    fat = open_fat(programs / f"{name}.pte").container
    # Both end with the inline section. Version 1 has no digests, so the bytes of its payloads are left alone.
    end = content.index(bytes(fat.inline), start) + len(fat.inline)
    described = end - start - len(fat.inline)
    sound, chance = content[start:end], random.Random(name)  # noqa: S311 - the same containers each time
    found = opened([sound, *(mutate(sound, chance, described) for _ in range(_COUNT))], fat.named_data)
    assert found[0].endswith(f" -> {first}")
    for line in found:
        verdicts, _, chosen = line.partition(" -> ")
        assert chosen == "" or f" {chosen} intact" in verdicts
    assert sum(" -> " in line for line in found) > _COUNT // 50


@pytest.mark.nightly
def test_fuzzing(programs, tmp_path):
    """A fuzzer that sees which code it reaches finds no crash, hang or leak, and only documented errors."""
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for name in ("v1", "v2", "v2-state", "transposed", "halves", "checked"):
        content = (programs / f"{name}.pte").read_bytes()
        delegate = next(each for method in read_pte(content).methods for each in method.delegates)
        (seeds / name).write_bytes(delegate.extent.of(content))
    fuzz_containers(build_fuzzer(tmp_path), tmp_path, seeds, runs=100_000, seed=1)
