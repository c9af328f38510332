"""docs/how-to/shipping.md works: its C++ and CMake code builds unchanged, commands run, errors are the runtime's."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import pteforge
import pytest
import torch
from pteforge.tasks.programs.payload import read_payload
from pteforge.tasks.verify.places import arm_host, install
from pteforge.tests.conftest import run_process
from pteforge.tests.lowering import PORTABLE, XNNPACK, outputs_of, recipe

ROOT = Path(pteforge.__file__).parent
PAGE = (ROOT / "docs" / "how-to" / "shipping.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = {found[1]: text for _, text in BLOCKS if (found := re.match(r"(?:#|//) ([\w/]+\.\w+)(?: \(|\n)", text))}
WHEEL = Path(importlib.util.find_spec("executorch").submodule_search_locations[0])
HEADERS = [WHEEL / "include", WHEEL / "include/executorch/runtime/core/portable_type/c10"]
COMPILE = [
    "-std=c++17",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
    *(f"-isystem{folder}" for folder in HEADERS),
    *("-Wall", "-Wextra", "-Werror"),
]
IMAGE = torch.full((1, 3, 8, 8), 0.5)
"""What app.cpp makes of the sizes of `builders:conv_net`."""


def script(words: str) -> str:
    """The shell commands of the one block that contains some words."""
    (found,) = (text for language, text in BLOCKS if language == "bash" and words in text)
    return found


def shell(text: str, folder: Path, **variables: object) -> str:
    """Runs commands as the page has them, with this Python and pteforge; returns what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **{name: str(value) for name, value in variables.items()}}
    done = run_process("bash", "-euc", text, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write(folder: Path, *names: str) -> None:
    """Writes files of the page into a folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FILES[name], encoding="utf-8")


def run(*command: object) -> str:
    """Runs a command that must succeed; returns what it prints."""
    done = run_process(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str) -> torch.Tensor:
    """The numbers that a program printed, one in each line, as a tensor of one row."""
    return torch.tensor([[float(line) for line in text.split()]])


def test_what_is_not_tested_says_so():
    """Each block is built or run by a test, or its first two lines say that it is not."""
    tested = {name for name, text in FILES.items() if "by a test)" not in text}
    assert tested == {"app/CMakeLists.txt", "app/app.cpp", "firmware/inference.cpp"}
    places = "pteforge verify out/resnet8"  # tests/runtime/test_device.py runs such commands
    run_here = (places, "inspect model.pte", "pteforge thin", "cmake -S app", "-DANDROID_ABI=arm64-v8a", "model.inc")
    assert len({script(words) for words in run_here}) == len(run_here)
    for language, text in BLOCKS:
        told = any("by a test" in line for line in text.splitlines()[:2])
        by_test = text in map(script, run_here) or text in {FILES[name] for name in tested}
        assert told != by_test, (language, text)


@pytest.fixture
def models(lower, tmp_path) -> Path:
    """A folder with files of one model: plain ones, a fat one, and one with external weights."""
    recipes = {
        "portable": PORTABLE,
        "xnnpack": XNNPACK,
        "fat": recipe("vulkan", "xnnpack", "portable"),
        "external": recipe("xnnpack", output={"external_data": True}),
    }
    for name, made in recipes.items():
        lowered = lower("builders:conv_net", made)
        (tmp_path / f"{name}.pte").write_bytes(lowered.file)
        if data := lowered.outputs["serialize"].get("data"):
            (tmp_path / f"{name}.ptd").write_bytes(read_payload(data, lowered.store))
    return tmp_path


@pytest.fixture(scope="module")
def app(made_once) -> Path:
    """A folder with the C++ program: `build/app`, what CMake installs, and `bare`, which lacks kernels and backends."""

    def build(folder: Path) -> None:
        write(folder, "app/CMakeLists.txt", "app/app.cpp")
        (folder / "app" / "pteforge").symlink_to(ROOT)
        shell(script("cmake -S app"), folder)
        archive = ["-Wl,--whole-archive", folder / "build/nfat/libnfat_backend.a", "-Wl,--no-whole-archive"]
        libraries = [f"-L{WHEEL / 'lib'}", f"-Wl,-rpath,{WHEEL / 'lib'}", "-lexecutorch", "-lexecutorch_threadpool"]
        sources = [f"-I{ROOT / 'runtime/include'}", folder / "app/app.cpp", "-o", folder / "bare"]
        run("c++", *COMPILE, *sources, *archive, *libraries)

    return made_once("shipped-app", build)


@pytest.mark.slow
@pytest.mark.timeout(600)  # the first test builds
def test_app(app, models):
    """The program runs plain files, external weights and a fat file, whose payloads it reports, as Python's runtime."""
    (expected,) = outputs_of((models / "portable.pte").read_bytes(), IMAGE)
    for arguments in (["portable.pte"], ["xnnpack.pte"], ["external.pte", "external.ptd"], ["fat.pte"]):
        done = run_process(app / "build/app", *arguments, cwd=models)
        assert done.returncode == 0, done.stderr
        torch.testing.assert_close(numbers(done.stdout), expected, rtol=1e-4, atol=1e-5)
        assert ("xnnpack: chosen: " in done.stderr) == (arguments == ["fat.pte"])


@pytest.mark.slow
def test_installed_app(app, models):
    """What is installed runs with the libraries next to it, and not with those of the wheel."""
    linked = re.findall(r"libexecutorch\w*\.so => (\S+)/lib", run("ldd", app / "installed/app"))
    assert linked == [str(app / "installed")] * 4
    assert len(run(app / "installed/app", models / "xnnpack.pte").split()) == 5


@pytest.mark.slow
def test_errors(app, models):
    """Each row of the last table is what the runtime logs and returns."""
    (models / "damaged.pte").write_bytes(b"\0" * 4096)
    cases = {
        "AccessFailed": "build/app missing.pte",
        "InvalidProgram": "build/app damaged.pte",
        "InvalidState": "build/app external.pte",
        "InvalidExternalData": "build/app external.pte portable.pte",
        "NotFound": "bare xnnpack.pte",
        "OperatorMissing": "bare portable.pte",
        "DelegateInvalidCompatibility": "bare fat.pte",
    }
    rows = dict(re.findall(r"^\| `([^|]+)` \| `(\w+)` \|", PAGE, re.MULTILINE))
    rows = {error: log for log, error in rows.items()}
    assert rows.pop("MemoryAllocationFailed") in small_buffer(models)
    assert rows.keys() == cases.keys()
    for error, case in cases.items():
        program, *arguments = case.split()
        done = run_process(app / program, *arguments, cwd=models)
        assert done.returncode == 1
        assert f"Error::{error}" in done.stderr
        assert rows[error] in done.stderr


def commands(words: str) -> list[list[str]]:
    """Arguments of pteforge in the block that contains some words."""
    lines = (shlex.split(line, comments=True) for line in script(words).splitlines())
    return [line[1:] for line in lines if line[:1] == ["pteforge"]]


@pytest.mark.slow
def test_commands(models, run_here):
    """The commands for the file in hand run; they show and write what the page says."""
    (models / "fat.pte").rename(models / "model.pte")

    def shown(words: str) -> str:
        said = [run_here(models, *arguments) for arguments in commands(words)]
        assert [each.code for each in said] == [0] * len(said), said
        return "".join(each.out for each in said)

    (models / "app-7.yaml").write_text(run_here(models, "contract", "model.pte", "--json").out)
    said = shown("pteforge inspect model.pte")
    for word in (
        "vulkan",
        "xnnpack",
        "portable",
        "planned memory: ",
        "gen_selected_ops(",
        "can be loaded by app-7.yaml",
    ):
        assert word in said
    shown("pteforge thin")
    assert (models / "plain.pte").read_bytes() == (models / "xnnpack.pte").read_bytes()
    (models / "plain.pte").unlink()
    assert re.search(r'"planned_memory": \[\s+2048\s+\]', shown("firmware/model.inc"))
    assert (models / "plain.pte").read_bytes() == (models / "portable.pte").read_bytes()


NDK = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)  # it builds
def test_android(tmp_path):
    """The lines for the NDK build a static library for Arm; a toolchain file for Debian's compiler takes its place."""
    toolchain = tmp_path / "ndk/build/cmake/android.toolchain.cmake"
    toolchain.parent.mkdir(parents=True)
    toolchain.write_text(NDK)
    (tmp_path / "pteforge").symlink_to(ROOT)
    shell(script("-DANDROID_ABI=arm64-v8a"), tmp_path, ANDROID_NDK=tmp_path / "ndk")
    library = tmp_path / "build-android/libnfat_backend.a"
    assert "elf64-littleaarch64" in run("aarch64-linux-gnu-objdump", "-f", library)
    assert "T nfat_backend_report" in run("aarch64-linux-gnu-nm", library)


PACKAGE = """
set(EXECUTORCH_INCLUDE_DIRS "${CMAKE_CURRENT_LIST_DIR}/include")
foreach(name executorch executorch_core)
  add_library(${name} STATIC IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION /nowhere.a INTERFACE_COMPILE_DEFINITIONS ET_LOG_ENABLED=0)
endforeach()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "options", "problem"),
    [
        ("1.5.0", "-DNFAT_STATIC=ON", "has ExecuTorch 1.5.0, not 1.5.1"),
        ("1.5.1", "", "configure with -DNFAT_STATIC=ON"),
        ("1.5.1", "-DNFAT_STATIC=ON", "Could not find NFAT_EXECUTORCH_PARENT"),
        ("1.5.1", f"-DNFAT_STATIC=ON -DNFAT_EXECUTORCH_PARENT={HEADERS[0]}", ""),
    ],
    ids=["other version", "shared", "no sources", "static"],
)
def test_builds_from_source(tmp_path, version, options, problem):
    """ExecuTorch built from source is found, of one version, for a static library, and with its folder of sources.

    A package with what matters of the one that upstream installs takes its place: targets, and the version in a header.
    """
    header = tmp_path / "include/executorch/runtime/core/version.h"
    header.parent.mkdir(parents=True)
    header.write_text(f'#define ET_VERSION_MAJOR 1\n#define ET_VERSION "{version}"\n#define ET_VERSION_CODE 66817\n')
    (tmp_path / "executorch-config.cmake").write_text(PACKAGE)
    command = ["cmake", "-S", ROOT / "runtime", "-B", tmp_path / "build", f"-Dexecutorch_DIR={tmp_path}"]
    done = run_process(*command, *options.split())
    assert (done.returncode == 0) == (not problem), done.stderr
    assert problem in " ".join(done.stderr.split())


FIRMWARE = """
#include <cstdio>
#include <cstdlib>

bool start();
size_t method_bytes();
const float* infer(float* pixels);

extern "C" void* __libc_malloc(size_t size);
extern "C" void* __libc_calloc(size_t count, size_t size);
extern "C" void* __libc_memalign(size_t alignment, size_t size);
static size_t calls = 0;
extern "C" void* malloc(size_t size) { ++calls; return __libc_malloc(size); }
extern "C" void* calloc(size_t count, size_t size) { ++calls; return __libc_calloc(count, size); }
extern "C" void* aligned_alloc(size_t alignment, size_t size) { ++calls; return __libc_memalign(alignment, size); }

int main() {
  float pixels[3 * 8 * 8];
  for (float& pixel : pixels) pixel = 0.5F;
  const size_t before = calls;
  if (!start()) return 1;
  const size_t loaded = calls;
  infer(pixels);
  const size_t warm = calls;
  const float* scores = infer(pixels);
  const size_t called = calls;
  for (int index = 0; index < 5; ++index) std::printf("%g\\n", scores[index]);
  std::fprintf(stderr, "bytes %zu, allocations %zu and %zu\\n", method_bytes(), loaded - before, called - warm);
}
"""


def firmware(folder: Path, compiler: str = "c++", package: Path = WHEEL) -> Path:
    """A program of the microcontroller's source, as it is in a folder, and the file `portable.pte` there."""
    (folder / "plain.pte").write_bytes((folder / "portable.pte").read_bytes())
    (folder / "main.cpp").write_text(FIRMWARE)
    shell("\n".join(line for line in script("model.inc").splitlines() if line.startswith("od ")), folder)
    options = re.search(r"target_compile_options\(firmware PRIVATE (.*)\)", FILES["firmware/CMakeLists.txt"])
    libraries = [f"-L{package}/lib", f"-Wl,-rpath,{package}/lib,-rpath-link,{package}/lib,--no-as-needed"]
    libraries += ["-lexecutorch", "-lexecutorch_kernels_optimized", "-lexecutorch_threadpool"]
    sources = [folder / "firmware/inference.cpp", folder / "main.cpp"]
    run(compiler, *COMPILE, *options[1].split(), *sources, "-o", folder / "program", *libraries)
    return folder / "program"


def small_buffer(folder: Path) -> str:
    """What the microcontroller's program logs if its planned memory is too small."""
    write(folder, "firmware/inference.cpp")
    source = folder / "firmware/inference.cpp"
    source.write_text(source.read_text().replace("planned[2048]", "planned[512]"))
    done = run_process(firmware(folder))
    assert done.returncode == 1
    return done.stderr


def check_firmware(folder: Path, *command: object) -> None:
    """Checks what the microcontroller's program computes, in static buffers and without allocating from the heap.

    The wheel's kernels make a pool of threads in the first call, so allocations of a second call are counted.
    """
    done = run_process(*command)
    assert done.returncode == 0, done.stderr
    (expected,) = outputs_of((folder / "portable.pte").read_bytes(), IMAGE)
    torch.testing.assert_close(numbers(done.stdout), expected, rtol=1e-4, atol=1e-5)
    taken, *allocations = map(int, re.search(r"bytes (\d+), allocations (\d+) and (\d+)", done.stderr).groups())
    assert 1024 < taken <= 4096
    assert allocations == [0, 0]


@pytest.mark.slow
def test_microcontroller(models):
    """The program computes what Python's runtime does, in static buffers of the page's sizes and without the heap."""
    write(models, "firmware/inference.cpp")
    check_firmware(models, firmware(models))


@pytest.mark.nightly
@pytest.mark.timeout(600)  # it builds nfat_run
def test_microcontroller_on_arm(models):
    """The same holds on an emulated Arm core."""
    write(models, "firmware/inference.cpp")
    program = firmware(models, "aarch64-linux-gnu-g++", install("arm64").parents[1] / "executorch")
    check_firmware(models, *arm_host("cortex-a53")[:-1], program)
