"""PyTorch's own tests of distributed backends, and ours beside Gloo, in the hosts of a rack.

    sudo .venv/bin/python -m tests.torch_suite --json FILE --table FILE

- `upstream.py`: `torch.testing._internal.distributed.distributed_test`, as PyTorch runs it for Gloo, once
  with Gloo and once with p4reduce in its place;
- `beside_gloo/`: each collective, type, operation and shape, groups, and trainings, with both in one process.

`host.py` runs either, one process in each host for all checks; `rack.py` starts those, and starts them again
where a check has ended them.
"""
