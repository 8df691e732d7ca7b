"""The worker's side: RoCE v2 wire format, RC transport, fixed point, collectives, PyTorch backend."""
