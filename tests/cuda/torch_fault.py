# SPDX-License-Identifier: Apache-2.0
"""A rank that dies in the middle of training over NCCL: the others get an error that says so, soon, and no hang.

    bench/gpu_lab.sh 2 none tests/cuda/torch_fault.py         # ranks that share a GPU

The exchange runs in C on the communicator of a group of torch's, whose watchdog knows nothing of it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith
import pith.torch
from pith.torch._carrier import TorchNcclCarrier, nccl_backend

STEPS, LAST = 50, 5
PATIENCE = 60  # seconds


def main() -> int:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000).cuda())
    compressor = pith.torch.compress(model, "q:4")
    rank, began = dist.get_rank(), time.monotonic()
    try:
        for step in range(STEPS):
            began = time.monotonic()
            if rank == 1 and step == LAST:
                os._exit(0)
            model.zero_grad()
            loss = model(torch.randn(64, 1000, device="cuda")).square().mean()
            loss.backward()
            model.module.weight.grad.sum().item()  # waits for the device, and so for the other ranks
            if step == 1:
                over = compressor._reduction.engine._over
                wanted = hasattr(nccl_backend(dist.group.WORLD), "_comm_ptr")
                print(f"rank {rank}: over {type(over).__name__}", flush=True)
                if isinstance(over, TorchNcclCarrier) != wanted:
                    print("FAIL: not the carrier that this torch allows")
                    os._exit(1)
    except pith.Error as error:
        print(f"ok   rank {rank}, {time.monotonic() - began:.1f} s later: {error}", flush=True)
        os._exit(0)  # the group is broken: torch's own end would wait for it
    print(f"FAIL rank {rank} trained on without rank 1")
    return 1


if __name__ == "__main__":
    sys.exit(main())
