"""Bytes to headers and headers to bytes: RoCE v2 and the aggregation header. Decides nothing."""
