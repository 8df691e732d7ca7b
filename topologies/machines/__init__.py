"""RoCE hosts: small QEMU machines from Debian packages, whose NIC is Linux's own RoCE v2 stack (rdma_rxe).

`image` builds what they boot, `network` ties a machine to its host's links, `machine` starts and watches it,
`access` runs commands in it.
"""
