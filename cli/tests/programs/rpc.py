"""Tensors between two processes by PyTorch RPC over its ibv transport, every number compared.

    rpc.py RANK PROCESSES ADDRESS PORT
"""

import os
import sys

import torch
import torch.distributed.rpc as rpc


def sum_of(left, right):
    """Runs in the other process."""
    return left + right


def main():
    rank, processes, address, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = port
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=2, rpc_timeout=30, _transports=["ibv"], _channels=["basic"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=processes, rpc_backend_options=options)
    wrong = 0
    if rank == 1:
        for count in (1, 1000, 100_000, 1_000_000):
            left = torch.arange(count, dtype=torch.int64)
            right = left * 3 + 7
            found = rpc.rpc_sync("worker0", sum_of, args=(left, right))
            if not torch.equal(found, left * 4 + 7):
                print(f"{count} numbers: the tensors differ", file=sys.stderr)
                wrong = 1
        if not wrong:
            print("all tensors are equal")
    rpc.shutdown()
    sys.exit(wrong)


main()
