"""Conversion of bytes to headers and back: RoCE v2 and the aggregation header. It decides nothing."""
