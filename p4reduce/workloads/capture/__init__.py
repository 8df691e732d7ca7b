"""RoCE v2 captures (pcap, pcapng), played again on a running fabric packet for packet with their timing.

reading     the file's frames and times, by libpcap
packets     the RoCE v2 packets that can be played, and the place of each in the data
hosts       the host of the fabric that plays each address of the capture
playing     the whole run: refuses packets that would disturb a job, sends the rest, notes what became of each
result      the figures, as JSON and as tables
"""

from __future__ import annotations

from p4reduce.workloads.capture.hosts import parse_mapping
from p4reduce.workloads.capture.playing import play
from p4reduce.workloads.capture.result import CaptureResult, PairResult
from p4reduce.workloads.capture.tables import capture_tables

__all__ = ["CaptureResult", "PairResult", "capture_tables", "parse_mapping", "play"]
