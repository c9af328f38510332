"""Fat programs in a plain C++ program."""

import json
import subprocess
from pathlib import Path

import pytest
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.reader import read_pte

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


_RUN = ("v1", "v2", "v2-damaged-first", "v2-dynamic", "v2-aliases", "v2-two-methods", "transposed", "halves")


@pytest.mark.parametrize("name", [*_RUN, "checked"])
def test_outputs(check_host, programs, outcomes, name):
    """A C++ program that links the library gets bit for bit what Python gets: for each method, call and size."""
    assert outcomes[name].error == ""
    check_host(programs, name)


def test_programs_that_do_not_load(run_host, host_arguments, programs):
    """Without a payload that can run, or with an unknown option, the program gets an error, and the log says why."""
    missing = "mlx: passed over: it needs MLXBackend, which is not registered in this runtime\n"
    for name, options, *messages in (
        ("v2-none-fits", [], missing, "Error::DelegateInvalidCompatibility"),
        ("v2", ["--verify", "most"], "verify_digests is one of none, parsed, all"),
    ):
        code, outputs, log = run_host(*options, *host_arguments(programs, name))
        assert (code, outputs) == (1, b"")
        assert all(message in log for message in messages)


def test_sizes(run_host, host_arguments, programs, tmp_path):
    """A size that the file's metadata leaves out is refused before the program runs; the runtime would take it."""
    from pteforge.formats.pte.contents import size_entries
    from pteforge.tasks.backend.file_programs import write_metadata

    plain, method, tensor = host_arguments(programs, "v2-dynamic")
    rows, described = int(tensor.partition("x")[0]), tmp_path / "described.pte"
    for least, step, refused in ((rows, 1, False), (rows + 1, 1, True), (rows - 1, 2, True)):
        sizes = size_entries({method: [[0, 0, least, rows + 2, step]]})
        write_metadata(plain, sizes, described, constant_methods=False, segment_alignment=128)
        code, outputs, log = run_host(described, method, tensor)
        assert (code, bool(outputs)) == ((2, False) if refused else (0, True)), log
        said = f"input 0 has size {rows} in dimension 0, the method takes {least} to {rows + 2} in steps of {step}"
        assert (said in log) == refused


@pytest.mark.parametrize("name", ["v2-state", "checked-state"])
def test_state(run_host, host_arguments, programs, name):
    """State is kept from call to call; every process starts with the initial one, whatever a check has left."""
    import torch

    for _ in range(2):
        code, found, messages = run_host("--repeat", "3", *host_arguments(programs, name))
        assert code == 0, messages
        assert found == torch.tensor([[2.0] * 4, [4.0] * 4, [6.0] * 4]).numpy().tobytes()


@pytest.mark.parametrize(
    "name", ["v1", "v2", "v2-state", "v2-aliases", "large", "transposed", "halves", "checked-state"]
)
def test_threads(run_host, host_arguments, sanitized, programs, name):
    """Instances that threads load and call at the same time do not affect each other, their state included."""
    arguments = host_arguments(programs, name)
    _, alone, _ = run_host("--repeat", "20", *arguments)
    done = subprocess.run([sanitized / "run_in_threads", "4", "20", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert len(alone) > 0
    assert done.stdout == alone


@pytest.mark.parametrize(
    ("name", "level", "chosen"),
    [
        ("large", "all", "xnnpack"),
        ("large-weights-damaged", "all", ""),
        ("large-weights-damaged", "parsed", "xnnpack"),
        ("large-parsed-damaged", "parsed", "portable"),
        ("large-parsed-damaged", "all", "portable"),
        ("v2-damaged-first", "all", "portable"),
        ("v2-no-parts-digest-damaged-first", "parsed", "portable"),
        ("v2-no-parts-digest", "all", "xnnpack"),
        ("v2", "none", "xnnpack"),
        ("transposed", "none", "xnnpack"),
        ("transposed-no-parts-digest", "all", "xnnpack"),
        ("halves", "none", "xnnpack"),
        ("halves-no-parts-digest", "all", "xnnpack"),
    ],
)
def test_levels_of_verification(run_host, host_arguments, programs, name, level, chosen):
    """With `all`, damaged weights are found; what is parsed is always verified, unless the level is `none`."""
    code, _, messages = run_host("--verify", level, *host_arguments(programs, name))
    assert [line.partition(":")[0] for line in messages.splitlines() if ": chosen: " in line] == (
        [chosen] * bool(chosen)
    )
    assert code == (0 if chosen else 1), messages
    assert chosen or messages.count("is damaged: its blob ") >= 2


@pytest.mark.parametrize("level", ["none", "parsed", "all"])
def test_bench(run_host, host_arguments, programs, level):
    """The host measures loading and each call."""
    arguments = host_arguments(programs, "large")
    code, outputs, messages = run_host("--bench", "--repeat", "7", "--verify", level, *arguments)
    assert code == 0, messages
    found = json.loads(outputs)
    assert 0 < found["load"] < 60
    assert len(found["calls"]) == 7
    assert min(found["resident_loaded"], found["resident_called"]) > found["resident_before"] > 0


def test_unplanned_outputs_are_written_in_place(run_sanitized, programs):
    """A payload without memory for its outputs writes them where the caller wants them; otherwise they are copied."""

    def call(name):
        content = (programs / f"{name}.pte").read_bytes()
        (delegate,) = (delegate for method in read_pte(content).methods for delegate in method.delegates)
        named_data = open_fat(programs / f"{name}.pte").container.named_data
        return run_sanitized("call_method", bytes(delegate.extent.of(content)), named_data)

    unplanned, planned = call("v2"), call("v2-planned")
    assert (unplanned[0], planned[0]) == ("in place", "copied")
    assert unplanned[1:] == planned[1:]
    assert len(set(unplanned[1:])) == 8


@pytest.mark.nightly
def test_benchmark(run_python, build):
    """One run measures every model, and a fat file takes at most 5 % more memory than its payload."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "fat_runtime.py"
    output = run_python("-W", "ignore", benchmark, "--repeat", "1", "--json", "--host", build / "nfat_run")
    costs = json.loads(output)
    assert [(cost["model"], cost["payload"]) for cost in costs] == [
        ("21 MB", "xnnpack"),
        ("21 MB", "portable"),
        ("ResNet-18", "xnnpack"),
        ("x + x", "xnnpack"),
        ("x + x", "portable"),
    ]
    assert costs[0]["payload_bytes"] > 20 << 20
    for cost in costs:
        assert cost["loaded_ratio"] < 1.05
        assert cost["called_ratio"] < 1.05
        assert cost["loaded_ratio_all"] < 1.05
        assert cost["verifying_all"] < 60
        assert cost["bare"]["load"] > 0
