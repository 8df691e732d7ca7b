"""Workloads by what a user names: a bundled model, or a file, whose content tells its format."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic import chakra, csv_file, torch_profiler
from p4reduce.workloads.traffic.model import GRADIENTS, Workload, gradient_type
from p4reduce.workloads.traffic.tables import MODELS, TERAFLOPS, bundled

_CAPTURES: Final = (
    b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1",  # pcap, microseconds
    b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1",  # pcap, nanoseconds
    b"\x0a\x0d\x0d\x0a",  # pcapng
)  # fmt: skip
_GZIP: Final = b"\x1f\x8b"
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")
KINDS: Final = (
    f"a bundled model ({', '.join(MODELS)}), a CSV file (numel,forward_ns,backward_ns for each layer), "
    "a torch.profiler trace (.json or .json.gz) or an MLCommons Chakra execution trace (.et)"
)


def workload_of(
    text: str, *, batch: int | None = None, teraflops: float | None = None, dtype: str | None = None
) -> Workload:
    """Return the workload that `text` names. WorkloadError if there is none, or it is malformed.

    `batch` (samples a worker) and `teraflops` (10**12 operations a second that a worker sustains) are for
    bundled models, whose times are computed; files have their own times. `dtype` is the gradients' (float32):
    of a trace that tells its own, no other.
    """
    dtype = None if dtype is None else gradient_type(dtype)
    path = Path(text)
    model = _bundled_name(text)
    if model is not None and (_spelling(text) == model or not _is_file(path)):
        return bundled(
            model,
            batch=batch,
            teraflops=TERAFLOPS if teraflops is None else teraflops,
            dtype=dtype or GRADIENTS[0],
        )
    if not _is_file(path):
        missing = " (there is no such file)" if path.suffix or "/" in text.rstrip("/") else ""
        raise WorkloadError(f"{text!r} is no workload{missing}: take {KINDS}")
    if is_capture(path):
        raise WorkloadError(
            f"{text} is a packet capture, which has no layers: 'p4reduce replay' plays it packet for packet"
        )
    if batch is not None or teraflops is not None:
        raise WorkloadError(
            f"{text} has its own times: batch and TFLOP/s are for bundled models; scale its computing instead"
        )
    return _of_file(path, where=text, dtype=dtype)


def is_capture(path: Path) -> bool:
    """Tell whether a file is a pcap or pcapng capture, by its first bytes. False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) in _CAPTURES
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, a directory that may not be searched
        return False


def _of_file(path: Path, *, where: str, dtype: str | None) -> Workload:
    try:
        content = path.read_bytes()
        compressed = content.startswith(_GZIP)
        if compressed:
            content = gzip.decompress(content)
    except gzip.BadGzipFile as error:
        raise WorkloadError(f"{where} is compressed with gzip, and damaged: {error}") from error
    except (EOFError, zlib.error) as error:
        raise WorkloadError(
            f"{where} is compressed with gzip, and was cut off or damaged: {error}"
        ) from error
    except OSError as error:
        raise WorkloadError(f"{where} cannot be read: {error.strerror}") from error
    name = path.name[: -len(".gz")] if compressed and path.suffix == ".gz" else path.name
    name = Path(name).stem
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return chakra.from_binary(content, name=name, where=where, dtype=dtype)
    if _NO_TEXT.search(content):
        return chakra.from_binary(content, name=name, where=where, dtype=dtype)
    start = decoded.lstrip()[:1]
    if start == "[" or (start == "{" and '"traceEvents"' in decoded):
        return torch_profiler.from_text(decoded, name=name, where=where, dtype=dtype)
    if start == "{":
        return chakra.from_json(decoded, name=name, where=where, dtype=dtype)
    return csv_file.from_text(decoded, name=name, where=where, dtype=dtype or GRADIENTS[0])


def _spelling(text: str) -> str:
    return text.strip().lower()


def _bundled_name(text: str) -> str | None:
    """Return the name of the bundled model that is meant; `ResNet50` means resnet-50."""
    bare = re.sub(r"[-_ ]", "", _spelling(text))
    return next((model for model in MODELS if model.replace("-", "") == bare), None)
