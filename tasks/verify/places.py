"""Places that files are verified on: what they run and say of themselves, and `nfat_run` on this machine.

Needs no torch, since keys have what places say.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ...artifacts.digest import digest_bytes, digest_file, digest_json
from ...artifacts.store import cache_folder
from ...configs.model import Limits
from ...configs.places import PlaceConfig
from ...errors import InputError, PteforgeError, SourceError, first_line, printable
from .stages.prove import PYTHON_PLACE, PlaceParams

Machine = Literal["host", "arm64"]
NFAT_RUN = "nfat_run"  # the program, and the name by which places call that of this machine
_SOURCES = Path(__file__).parents[2] / "runtime"
_BUILT = ("CMakeLists.txt", "src", "include", "host")  # what is compiled
_SYSROOT = Path("/usr/aarch64-linux-gnu")
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
_COMPILER = "aarch64-linux-gnu-g++"
_PROPERTIES = 4096  # bytes; VkPhysicalDeviceProperties has fewer
_NAME = slice(20, 276)  # deviceName, after five numbers of 32 bits
_MOST_DEVICES = 16
_LINES = 8  # of a failed command's output
# The folder of the build is renamed, and `nfat_run` has to find `libnfat_backend` next to it.
_OWN = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON"]

_SECONDS = 300.0  # that a place has to say what it is: importing torch takes minutes on a busy machine
_PAYLOAD_SECONDS = 600.0  # for each payload, unless the zoo says otherwise
_CHARACTERS = 4000  # characters of what it says that are kept
_BACKEND = re.compile(r"^backend: (\S+)$", re.MULTILINE)
_VULKAN = b"libvulkan.so"  # in libraries that look for a driver of Vulkan


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """A place of a recipe."""

    name: str
    params: PlaceParams
    required: bool = False
    unreachable: str = ""  # why it cannot be reached, if it cannot
    timeout: float | None = None  # seconds of each payload there, as written

    def limits(self, of_model: Limits) -> Limits:
        """The limits of a stage that runs there, with a shorter timeout: places may hang."""
        return of_model.model_copy(update={"timeout": self.timeout or min(of_model.timeout, _PAYLOAD_SECONDS)})


def plan_place(name: str, config: PlaceConfig, folder: Path) -> PlannedPlace:
    """Asks a place what it is; one that does not answer is unreachable. Paths of a command are relative to `folder`.

    Raises SourceError if one of its files or programs does not exist.
    """
    place = PlannedPlace(name, PlaceParams(), config.required, timeout=config.timeout)
    try:
        command = _command(config, folder)
    except InputError as error:
        return replace(place, unreachable=str(error))
    if missing := [path for path in config.library if not path.is_file()]:
        raise SourceError(f"there is no library {missing[0]}")
    files = [Path(word) for word in (*command, *map(str, config.library)) if Path(word).is_file()]
    params = PlaceParams(
        library=tuple(map(str, config.library)),
        command=command,
        env=dict(config.env),
        digests={path.name: digest_file(path) for path in files},
    )
    try:
        about = _about(config, command, folder)
    except _Unreachable as error:
        return replace(place, params=params, unreachable=str(error))
    backends = tuple(_BACKEND.findall(about)) if command and not config.about else None
    return replace(place, params=params.model_copy(update={"about": about, "backends": backends}))


class _Unreachable(Exception):
    """Says why a place cannot be reached."""


def _command(config: PlaceConfig, folder: Path) -> tuple[str, ...]:
    """The command of a place, with absolute paths; empty for a library. Raises InputError for one that is missing."""
    if config.qemu:
        return arm_host(config.qemu)
    if config.python:
        return (str(config.python), "-m", PYTHON_PLACE)
    words = shlex.split(config.command or "")
    if words[:1] == [NFAT_RUN] and shutil.which(NFAT_RUN) is None:
        words[0] = str(installed("host"))
    return tuple(
        str((folder / word).absolute()) if "/" in word and (folder / word).exists() else word for word in words
    )


def _about(config: PlaceConfig, command: Sequence[str], folder: Path) -> str:
    """What a place says of itself."""
    if config.about:
        return _output(shlex.split(config.about), config.env, folder)
    if command:
        if shutil.which(command[0]) is None:
            raise SourceError(f"the command {command[0]!r} cannot be run: there is no such program")
        return _output((*command, "--about"), config.env, folder)
    if any(_VULKAN in path.read_bytes() for path in config.library):
        asks = f"from {__name__} import print_vulkan_devices; print_vulkan_devices()"
        return _output((sys.executable, "-c", asks), config.env, folder)
    return ""


def _output(command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's
            command, cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _Unreachable(f"{shlex.join(command)} did not answer within {_SECONDS:g} s") from error
    except OSError as error:
        raise _Unreachable(f"{shlex.join(command)} cannot be run: {error.strerror}") from error
    if done.returncode:
        message = first_line(done.stderr.decode(errors="replace")) or "it says nothing"
        raise _Unreachable(f"{shlex.join(command)} ended with exit code {done.returncode}: {printable(message)}")
    return printable(done.stdout.decode(errors="replace").strip()[:_CHARACTERS], keep="\n")


def arm_host(core: str) -> tuple[str, ...]:
    """The command that runs `nfat_run` on an emulated core; raises InputError if something for it is missing."""
    host = installed("arm64")
    emulator = next(filter(None, map(shutil.which, _EMULATORS)), None)
    if emulator is None:
        raise InputError(f"there is no {_EMULATORS[0]}: apt install qemu-user-static")
    folder = host.parents[1]
    libraries = f"LD_LIBRARY_PATH={folder / 'executorch/lib'}:{folder / 'build'}"
    return (emulator, "-cpu", core, "-L", str(_SYSROOT), "-E", libraries, str(host))


def installed(machine: Machine) -> Path:
    """`nfat_run` for a machine; raises InputError if it has not been built."""
    host = _folder(machine) / "build" / NFAT_RUN
    if not host.is_file():
        raise InputError(f"nfat_run for {machine} is not there: run `pteforge runtime install {machine}` once")
    return host


def install(machine: Machine) -> Path:
    """Builds `nfat_run` unless it is there, for Arm with ExecuTorch's wheel for it; returns the program.

    Raises InputError with the packages to install, or PteforgeError if the download or the build fails.
    """
    folder, missing = _folder(machine), list(_missing(machine))
    if missing:
        raise InputError(f"missing: {'; '.join(missing)}")
    if (folder / "build" / NFAT_RUN).is_file():
        return installed(machine)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{machine}-") as temporary:
        staging = Path(temporary) / machine
        options = _download_arm(staging) if machine == "arm64" else _OWN
        build = str(staging / "build")
        _run(["cmake", "-S", str(_SOURCES), "-B", build, "-DNFAT_BUILD_HOST=ON", *options])
        _run(["cmake", "--build", build, "--parallel", str(os.cpu_count() or 1)])
        try:
            staging.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "build" / NFAT_RUN).is_file():
                raise
    return installed(machine)


def _download_arm(folder: Path) -> list[str]:
    """Unpacks ExecuTorch's wheel for Arm; returns the options of a build with it."""
    wheel = ["--no-deps", "--only-binary=:all:", "--platform", "manylinux_2_28_aarch64", "--python-version", "3.11"]
    name = f"executorch=={version('executorch')}"
    _run([sys.executable, "-m", "pip", "download", "--quiet", *wheel, name, "--dest", str(folder)])
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    archive.unlink()
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={_COMPILER}"]
    return [*system, f"-Dexecutorch_DIR={folder / 'executorch/share/cmake'}"]


def processor() -> str:
    """The name of this machine's processor, as far as the system knows it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {os.cpu_count()} cores"


def _folder(machine: Machine) -> Path:
    """Folder of the build of these sources with the installed version of ExecuTorch."""
    files = [file for part in _BUILT for file in sorted({_SOURCES / part, *(_SOURCES / part).rglob("*")})]
    digests = {str(file.relative_to(_SOURCES)): digest_bytes(file.read_bytes()) for file in files if file.is_file()}
    return cache_folder() / "runtime" / f"{machine}-{version('executorch')}-{digest_json(digests)[:12]}"


def _missing(machine: Machine) -> list[str]:
    """The programs that this machine lacks for it, each with the package to install."""
    programs: dict[tuple[str, ...], str] = {("c++", "g++", "clang++"): "a C++ compiler (apt install g++)"}
    if machine == "arm64":
        programs = {
            _EMULATORS: f"{_EMULATORS[0]} (apt install qemu-user-static)",
            (_COMPILER,): f"{_COMPILER} (apt install g++-aarch64-linux-gnu)",
        }
    programs["cmake",] = "cmake 3.24 or newer (pip install cmake)"
    return [text for names, text in programs.items() if not any(map(shutil.which, names))]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - ours
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES:])
        raise PteforgeError(f"{' '.join(command[:4])} ... failed:\n{output}")


def print_vulkan_devices() -> None:
    """Prints each device of Vulkan with its driver, which may end the process; exits with a message without a loader.

    Structures and numbers are those of the Vulkan 1.0 specification.
    """
    try:
        vulkan = ctypes.CDLL("libvulkan.so.1")
    except OSError as error:
        sys.exit(f"there is no Vulkan loader: {error}")
    instance = ctypes.c_void_p()
    create_info = (ctypes.c_uint64 * 8)(1)  # a VkInstanceCreateInfo that has only its type
    if vulkan.vkCreateInstance(ctypes.byref(create_info), None, ctypes.byref(instance)):
        sys.exit("there is no Vulkan driver")
    count = ctypes.c_uint32(_MOST_DEVICES)
    devices = (ctypes.c_void_p * _MOST_DEVICES)()
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    lines = []
    for device in devices[: count.value]:
        content = ctypes.create_string_buffer(_PROPERTIES)
        vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), content)
        api, driver, vendor, identity, _ = memoryview(content).cast("B")[:20].cast("I")
        name = content.raw[_NAME].split(b"\0")[0].decode(errors="replace")
        version = f"{api >> 22 & 0x7F}.{api >> 12 & 0x3FF}.{api & 0xFFF}"
        lines.append(f"{name}, Vulkan {version}, driver {driver:#x}, device {vendor:04x}:{identity:04x}")
    sys.stdout.write("\n".join(lines))
