"""Builds the native parts; everything else about the package is in setup.cfg.

They are plain shared libraries, loaded with ctypes: they know nothing of Python, so that one wheel
serves every Python version. No flag here depends on the build machine.
"""

from __future__ import annotations

import hashlib
import os
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# What the environment asks for comes last, and so holds; but sums stay the same to the bit.
ASKED_FOR = os.environ.get("CXXFLAGS", "").split()
COMMON = ["-std=c++17", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]

HOST_AGENT = Extension(
    "host_agent._native",
    sources=sorted(glob("host_agent/native/*.cpp")),
    depends=glob("host_agent/native/*.h"),
    language="c++",
    extra_compile_args=[
        *COMMON,
        "-O3",
        *ASKED_FOR,
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=off",
    ],
    extra_link_args=["-pthread"],
)

# Of the agent it takes packets on the wire: how a frame is written, its ICRC, and a socket's rings.
_ON_THE_WIRE = [f"host_agent/native/{name}.cpp" for name in ("frame", "icrc", "packet_socket")]
CAPTURE = "p4reduce/workloads/capture/native"
FRAME_PLAYER = Extension(
    "p4reduce.workloads.capture._player",
    sources=[*sorted(glob(f"{CAPTURE}/*.cpp")), *_ON_THE_WIRE],
    depends=[*glob(f"{CAPTURE}/*.h"), *glob("host_agent/native/*.h")],
    include_dirs=["host_agent/native"],
    language="c++",
    extra_compile_args=[*COMMON, "-O3", *ASKED_FOR],
    extra_link_args=["-pthread"],
)


def engine_sources() -> str:
    """What the engine was built from, as `soft_switch.build.engine_sources` has it."""
    digest = hashlib.sha256()
    for path in sorted(glob("soft_switch/native/*")):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


ENGINE = Extension(
    "soft_switch._engine",
    sources=["soft_switch/native/engine.cpp"],
    depends=glob("soft_switch/native/*.h"),
    language="c++",
    define_macros=[("P4_SOURCES", f'"{engine_sources()}"')],
    extra_compile_args=[*COMMON, "-O2", *ASKED_FOR],
    extra_link_args=["-pthread"],
)


class BuildNative(build_ext):
    """Names a library `_native.so`, not `_native.cpython-312-....so`: no Python version is part of it."""

    def get_ext_filename(self, ext_name: str) -> str:
        return ext_name.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[HOST_AGENT, FRAME_PLAYER, ENGINE],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
