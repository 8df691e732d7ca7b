"""Contents of the image, without making it."""

from __future__ import annotations

import configparser
import lzma
import struct
from pathlib import Path

import pytest

from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import building

_REPOSITORY = Path(__file__).parents[3]


def bz_image(kernel: bytes, *, version: int = 0x20F, magic: bytes = b"HdrS") -> bytes:
    """Return a kernel image with one setup sector and a payload 64 bytes into the protected-mode code."""
    payload = lzma.compress(kernel) + struct.pack("<I", len(kernel))
    image = bytearray(2 * 512 + 64) + payload
    image[0x1F1] = 1
    image[0x202:0x208] = magic + struct.pack("<H", version)
    struct.pack_into("<II", image, 0x248, 64, len(payload))
    return bytes(image)


def test_the_kernel_is_taken_out_of_its_image() -> None:
    kernel = b"\x7fELF" + bytes(range(256)) * 100
    assert building.uncompressed_kernel(bz_image(kernel)) == kernel


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (bz_image(b"\x7fELF", version=0x207), "no bzImage of boot protocol 2.08"),
        (bz_image(b"\x7fELF", magic=b"none"), "no bzImage"),
        (bz_image(b"script"), "no ELF file"),
        (bz_image(b"\x7fELF").replace(b"\xfd7zXZ", b"\x1f\x8b\x08\x00\x00"), "not compressed with xz"),
    ],
)
def test_kernels_that_are_none(image: bytes, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        building.uncompressed_kernel(image)


def test_modules_and_what_they_depend_on() -> None:
    listed = "a/rdma_rxe.ko: b/ib-core.ko c/udp_tunnel.ko\nb/ib-core.ko:\nc/udp_tunnel.ko:\nd/other.ko:\n"
    assert building.closure(listed, ("rdma_rxe",)) == {"a/rdma_rxe.ko", "b/ib-core.ko", "c/udp_tunnel.ko"}
    assert building.closure(listed, ("ib_core",)) == {"b/ib-core.ko"}
    with pytest.raises(TopologyError, match="no module virtio_net"):
        building.closure(listed, ("virtio_net",))


def test_wheels_as_setup_cfg_has_them() -> None:
    setup = configparser.ConfigParser()
    setup.read(_REPOSITORY / "setup.cfg")
    required = setup["options"]["install_requires"].split()
    for package in building.PYTHON_PACKAGES:
        assert package.partition(",")[0] in required


def test_missing_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"without debootstrap, cpio, .*'make roce-image' installs"):
        building.require_programs()


def test_a_step_that_fails_says_why(tmp_path: Path) -> None:
    steps = building.Steps(tmp_path / "log", prefix=())
    steps.run("sh", "-c", "echo nothing of interest")
    with pytest.raises(TopologyError, match=r"sh failed: no such suite$"):
        steps.run("sh", "-c", "echo no such suite >&2; exit 3")


@pytest.mark.parametrize(
    "complaint",
    ["E: Couldn't find these debs: rdma-cor", "No space left on device", "No matching distribution found"],
)
def test_what_fails_beside_a_registry_is_our_fault(tmp_path: Path, complaint: str) -> None:
    """Check it, since continuous integration would otherwise be green without having run a machine."""
    steps = building.Steps(tmp_path / "log", prefix=())
    words = ("sh", "-c", 'echo "$0" >&2; exit 1', complaint)
    with pytest.raises(TopologyError, match=f"sh failed: {complaint}$") as failed:
        steps.fetch(*words, reachable=lambda: True)
    assert not isinstance(failed.value, UnsupportedError)
    with pytest.raises(UnsupportedError, match=f"{complaint} \\(its package registry cannot be reached"):
        steps.fetch(*words, reachable=lambda: False)
    steps.fetch("true", reachable=lambda: False)


def wheel(wheels: Path, name: str, *files: str) -> None:
    """Write what pip leaves of an installed wheel."""
    directory = wheels / f"{name}-1.0.dist-info"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))


def test_wheels_have_native_parts(tmp_path: Path) -> None:
    names = ["grpcio", "ml_dtypes", "numpy", "protobuf"]
    for name in names:
        wheel(tmp_path, name, f"{name}/__init__.py", f"{name}/_native.abi3.so")
    building.require_native(tmp_path)
    for name in names:
        wheel(tmp_path, name, f"{name}/__init__.py")
        with pytest.raises(TopologyError, match=f"the wheels of {name} for Python 3.11 .* no native part"):
            building.require_native(tmp_path)
        wheel(tmp_path, name, f"{name}/_native.so")
