"""Build of the image of the RoCE hosts. This file and `files/` decide what is in it."""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import registries
from topologies.machines.registries import Reachable

SUITE: Final = "bookworm"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
KERNEL_PACKAGE: Final = "linux-image-amd64"
DEBIAN_PACKAGES: Final = (
    *("rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest", "rdmacm-utils"),
    *("iproute2", "iputils-ping", "tcpdump", "kmod", "openssh-server", "python3-minimal", "python3-pyverbs"),
)
PYTHON_VERSION: Final = "3.11"  # the suite's
# As setup.cfg has them; generated protobuf code warns on every start under a newer major version.
PYTHON_PACKAGES: Final = ("grpcio>=1.71", "ml_dtypes>=0.5", "numpy>=1.26", "protobuf>=6.33.5,<7")
PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 16, -1)),
    "manylinux2014_x86_64",  # the older name of 2_17, which some wheels have alone
)
MODULES: Final = (
    *("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "rdma_rxe", "ib_uverbs", "rdma_ucm"),
    *("crc32_generic", "crc32-pclmul", "crc32c_generic", "crc32c-intel"),
)
PACKAGES_DIRECTORY: Final = "/usr/local/lib/p4reduce"  # links to the project's own packages, made at boot
WHEELS_DIRECTORY: Final = "/usr/local/lib/p4reduce-wheels"
COMPILED_DIRECTORY: Final = (
    "/usr/local/lib/p4reduce-compiled"  # Python's: this host's files are read-only there
)
SESSION: Final = "/usr/local/lib/p4reduce-session"

_PROGRAMS: Final = ("debootstrap", "cpio", "gcc", "apt-get", "dpkg-deb", "chroot", "unshare", "setpriv")
_STEP_TIMEOUT_S: Final = 1200.0
_DEBIAN_REACHABLE: Final = partial(registries.debian_reachable, SUITE)
# debootstrap mounts file systems in what it makes: they, and all that runs, go with the process that builds.
CONFINED: Final = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--"),
)
# Nothing in a machine installs, documents, translates, or manages devices.
_NOT_NEEDED: Final = (
    *("boot", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/log", "etc/apt", "usr/include", "usr/games"),
    *(f"usr/share/{name}" for name in ("doc", "man", "locale", "info", "perl", "perl5", "bash-completion")),
    *(f"usr/share/{name}" for name in ("lintian", "i18n", "zoneinfo", "debconf", "common-licenses", "gcc")),
    *(f"usr/lib/{name}" for name in ("apt", "systemd", "udev", "dpkg", "locale", "sysctl.d", "tmpfiles.d")),
    *(f"usr/lib/x86_64-linux-gnu/{name}" for name in ("perl-base", "gconv", "perl", "systemd", "e2fsprogs")),
    *("lib/udev", "lib/systemd", "usr/lib/x86_64-linux-gnu/libapt-pkg.so.6.0", "usr/bin/perl"),
)

Progress = Callable[[str], None]


def require_programs() -> None:
    """Raise UnsupportedError that names missing programs, and the make target that installs them."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if not KEYRING.exists():
        missing.append(str(KEYRING))
    if missing:
        raise UnsupportedError(
            f"the image of the RoCE hosts cannot be built without {', '.join(missing)}: "
            "'make roce-image' installs them (on Debian and Ubuntu; without this project's repository: "
            "apt-get install debootstrap cpio gcc debian-archive-keyring)"
        )


def build(scratch: Path, files: Path, *, progress: Progress) -> Path:
    """Build in `scratch`, which the caller removes. Return the directory with vmlinux and initrd."""
    root, result, log = scratch / "root", scratch / "image", scratch / "log"
    result.mkdir()
    steps = Steps(log)
    progress(f"Debian {SUITE} for the RoCE hosts (debootstrap)")
    _bootstrap(steps, root)
    progress("its kernel")
    _kernel(steps, scratch, root, result)
    progress(f"Python wheels: {', '.join(PYTHON_PACKAGES)}")
    _wheels(steps, root)
    progress("its root file system")
    _own_files(steps, root, files)
    _prune(root)
    initrd = result / "initrd"
    steps.run(
        "sh", "-c", 'find . -print0 | sort -z | cpio -0 -o -H newc --quiet >"$0"', str(initrd), cwd=root
    )
    return result


class Steps:
    """Commands behind the words of `prefix`, with their output in one log."""

    def __init__(self, log: Path, prefix: tuple[str, ...] = CONFINED) -> None:
        self._log = log
        self._prefix = prefix

    def fetch(self, *command: str, reachable: Reachable, cwd: Path | None = None) -> None:
        """Run a command that needs a package registry. Raise UnsupportedError if that is out of reach."""
        try:
            self.run(*command, cwd=cwd)
        except TopologyError as error:
            if reachable():
                raise
            raise UnsupportedError(f"{error} (its package registry cannot be reached)") from error

    def run(self, *command: str, cwd: Path | None = None) -> None:
        """Run a command. Raise TopologyError with the end of its output if it fails."""
        with self._log.open("ab") as log:
            before = log.tell()
            try:
                done = subprocess.run(
                    [*self._prefix, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=cwd,
                    timeout=_STEP_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise TopologyError(f"{command[0]} took more than {_STEP_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            with self._log.open("rb") as log:
                log.seek(before)
                lines = log.read().decode(errors="replace").strip().splitlines()
            raise TopologyError(
                f"the image of the RoCE hosts cannot be built: {command[0]} failed: "
                f"{' / '.join(lines[-3:]) or 'it said nothing'}"
            )


def _bootstrap(steps: Steps, root: Path) -> None:
    steps.fetch(
        *("debootstrap", "--variant=minbase", f"--keyring={KEYRING}"),
        *(f"--include={','.join(DEBIAN_PACKAGES)}", SUITE, str(root), *registries.debian_mirror()),
        reachable=_DEBIAN_REACHABLE,
    )


def _kernel(steps: Steps, scratch: Path, root: Path, result: Path) -> None:
    """Take the suite's kernel from where debootstrap took the rest, with the host's apt configuration."""
    for name in ("state/lists/partial", "cache/archives/partial", "download"):
        (scratch / name).mkdir(parents=True)
    options = {
        "Dir::State": scratch / "state",
        "Dir::State::status": root / "var/lib/dpkg/status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": root / "etc/apt/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::trusted": KEYRING,
        "Dir::Etc::trustedparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    steps.fetch("apt-get", *apt, "--quiet", "update", reachable=_DEBIAN_REACHABLE)
    depends = subprocess.run(
        ["apt-cache", *apt, "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False
    ).stdout.split()
    packages = [word for word in depends if word.startswith("linux-image-") and word != KERNEL_PACKAGE]
    if not packages:
        raise TopologyError(f"Debian {SUITE} has no {KERNEL_PACKAGE} that could be downloaded")
    version = packages[0].removeprefix("linux-image-")
    steps.fetch(
        *("apt-get", *apt, "--quiet", "download", packages[0]),
        reachable=_DEBIAN_REACHABLE,
        cwd=scratch / "download",
    )
    (package,) = (scratch / "download").glob("*.deb")
    unpacked = scratch / "kernel"
    steps.run("dpkg-deb", "--extract", str(package), str(unpacked))
    compressed = (unpacked / f"boot/vmlinuz-{version}").read_bytes()
    (result / "vmlinux").write_bytes(uncompressed_kernel(compressed))
    target = root / "lib/modules" / version
    target.parent.mkdir(exist_ok=True)
    shutil.copytree(unpacked / "lib/modules" / version, target, symlinks=True)
    _keep_modules(steps, root, version)


def uncompressed_kernel(image: bytes) -> bytes:
    """Return the ELF file in a bzImage.

    Source: Linux's arch/x86/boot.rst (setup_sects, payload_offset, payload_length).
    """
    if image[0x202:0x206] != b"HdrS" or struct.unpack_from("<H", image, 0x206)[0] < 0x208:
        raise TopologyError("the kernel is no bzImage of boot protocol 2.08 or later")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    try:
        # The size stands behind the compressed stream.
        kernel = lzma.LZMADecompressor().decompress(image[start : start + length])
    except lzma.LZMAError as error:
        raise TopologyError(f"the kernel is not compressed with xz ({error})") from error
    if not kernel.startswith(b"\x7fELF"):
        raise TopologyError("what is compressed in the kernel is no ELF file")
    return kernel


def _keep_modules(steps: Steps, root: Path, version: str) -> None:
    """Remove all modules but MODULES and what they depend on."""
    directory = root / "lib/modules" / version
    steps.run("chroot", str(root), "depmod", version)
    keep = closure((directory / "modules.dep").read_text(), MODULES)
    for path in directory.rglob("*.ko"):
        if str(path.relative_to(directory)) not in keep:
            path.unlink()
    for path in (directory / "build", directory / "source"):
        path.unlink(missing_ok=True)
    steps.run("chroot", str(root), "depmod", version)


def closure(modules_dep: str, wanted: tuple[str, ...]) -> set[str]:
    """Return the files of the `wanted` modules and their dependencies, by depmod's list (modules.dep(5))."""
    depends = {
        path: rest.split() for path, _, rest in (line.partition(":") for line in modules_dep.splitlines())
    }
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in depends}
    keep: set[str] = set()
    for name in wanted:
        path = by_name.get(name.replace("-", "_"))
        if path is None:
            raise TopologyError(f"the kernel has no module {name}")
        keep |= {path, *depends[path]}  # depmod lists indirect ones too
    return keep


def _wheels(steps: Steps, root: Path) -> None:
    """Install wheels for the image's Python, whatever the host's is."""
    target = root / WHEELS_DIRECTORY[1:]
    steps.fetch(
        *(*registries.PIP, "install", "--quiet"),
        *("--no-compile", "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_VERSION}"),
        *(f"--platform={platform}" for platform in PLATFORMS),
        *("--target", str(target), *PYTHON_PACKAGES),
        reachable=registries.python_reachable,
    )
    require_native(target)
    for path in [*target.rglob("tests"), *target.rglob("*.pyi")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def require_native(wheels: Path) -> None:
    """Raise TopologyError that names PYTHON_PACKAGES in pure Python, which is many times slower."""
    names = [re.split("[<>=]", requirement)[0] for requirement in PYTHON_PACKAGES]
    pure = [
        name
        for name in names
        if not any(
            line.partition(",")[0].endswith(".so")
            for record in wheels.glob(f"{name}-*.dist-info/RECORD")
            for line in record.read_text().splitlines()
        )
    ]
    if pure:
        raise TopologyError(
            f"the image of the RoCE hosts cannot be built: the wheels of {', '.join(pure)} for "
            f"Python {PYTHON_VERSION} on x86-64 have no native part"
        )


def _own_files(steps: Steps, root: Path, files: Path) -> None:
    shutil.copy(files / "init", root / "init")
    (root / "init").chmod(0o755)
    for old in (root / "etc/ssh").glob("ssh_host_*"):
        old.unlink()
    shutil.copy(files / "sshd_config", root / "etc/ssh/sshd_config")
    session = root / SESSION[1:]
    session.parent.mkdir(parents=True, exist_ok=True)
    steps.run("gcc", "-O2", "-static", "-o", str(session), str(files / "session.c"))
    _compile(steps, root)


def _compile(steps: Steps, root: Path) -> None:
    """Compile all Python code to where a machine looks for it."""
    for path in list(root.rglob("__pycache__")):
        shutil.rmtree(path)
    libraries = ("/usr/lib/python3", f"/usr/lib/python{PYTHON_VERSION}", WHEELS_DIRECTORY)
    steps.run(
        *("chroot", str(root), "env", f"PYTHONPYCACHEPREFIX={COMPILED_DIRECTORY}"),
        *("python3", "-m", "compileall", "-q", "-x", r"/(lib2to3|ensurepip|test|idlelib)/", *libraries),
    )


def _prune(root: Path) -> None:
    for name in _NOT_NEEDED:
        path = root / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
    for device in (root / "dev").iterdir():  # a file system of the kernel's own is mounted there
        if device.name != "console":
            shutil.rmtree(device) if device.is_dir() and not device.is_symlink() else device.unlink()
    (root / "var/log").mkdir(parents=True, exist_ok=True)
