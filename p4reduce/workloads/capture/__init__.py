"""RoCE v2 captures (pcap, pcapng), played again on a running fabric packet for packet with their timing.

reading     the file's frames and times, by libpcap
packets     which of them are RoCE v2 that can be played, and where in the data each is
hosts       which host of the fabric plays which address of the capture
playing     all of it: what would disturb a job is refused, the rest is sent; what became of each packet
result      the figures, as JSON and as tables
"""

from __future__ import annotations

from p4reduce.workloads.capture.hosts import parse_mapping
from p4reduce.workloads.capture.playing import play
from p4reduce.workloads.capture.result import CaptureResult, PairResult
from p4reduce.workloads.capture.tables import capture_tables

__all__ = ["CaptureResult", "PairResult", "capture_tables", "parse_mapping", "play"]
