"""Builds the native parts; everything else about the package is in setup.cfg.

They are plain shared libraries, loaded with ctypes: they know nothing of Python, so that one wheel
serves every Python version. No flag here depends on the build machine.
"""

from __future__ import annotations

from glob import glob

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HOST_AGENT = Extension(
    "host_agent._native",
    sources=sorted(glob("host_agent/native/*.cpp")),
    depends=glob("host_agent/native/*.h"),
    language="c++",
    extra_compile_args=[
        "-std=c++17",
        "-O3",
        "-g0",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wall",
        "-Wextra",
        "-pthread",
    ],
    extra_link_args=["-pthread"],
)


class BuildNative(build_ext):
    """Names a library `_native.so`: no Python version is part of it."""

    def get_ext_filename(self, ext_name: str) -> str:
        return ext_name.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(ext_modules=[HOST_AGENT], cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel})
