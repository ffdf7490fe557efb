# SPDX-License-Identifier: Apache-2.0
"""A reducer over a process group of torch.distributed, without pith.torch: a carrier in a few lines, and a loop that trains over it.

torchrun --nproc-per-node 3 examples/python/torch_carrier.py                    # q:4
torchrun --nproc-per-node 3 examples/python/torch_carrier.py ef/powersgd:2      # or another spec

pith.torch.compress() does this and more for DistributedDataParallel. A loop of one's own, or other collectives, may want it plain.
"""

from __future__ import annotations

import hashlib
import sys

import torch
import torch.distributed as dist

import pith

TYPES = {
    "f32": torch.float32, "f64": torch.float64, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def tensor(view: memoryview, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """The same memory; torch refuses views of nothing."""
    return torch.frombuffer(view, dtype=dtype) if view.nbytes else torch.empty(0, dtype=dtype)


class GroupCarrier(pith.Carrier):
    """Every method begins a collective of the group and returns its work, which pith.Carrier.wait() waits for."""

    name = "my group"
    threads = True  # the reducer sends while the caller computes

    def __init__(self) -> None:
        self.group = dist.new_group()  # nobody else's collectives come between ours
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def all_to_all(self, send, recv, send_bytes, recv_bytes):
        return dist.all_to_all_single(
            tensor(recv), tensor(send), recv_bytes, send_bytes, group=self.group, async_op=True
        )

    def all_gather(self, send, recv):
        parts = list(tensor(recv).split(max(1, send.nbytes)))
        return dist.all_gather(parts, tensor(send), group=self.group, async_op=True)

    def allreduce(self, values, dtype, op):
        return dist.all_reduce(
            tensor(values, TYPES[dtype]), OPS[op], group=self.group, async_op=True
        )


def train(model: torch.nn.Module, reducer: pith.Reducer, rank: int, steps: int) -> list[float]:
    """Every gradient leaves when the backward pass has it. The loss of every step."""
    for name, p in model.named_parameters():
        reducer.add(name, p.shape, p.dtype)
        p.register_post_accumulate_grad_hook(lambda p, name=name: reducer.start(name, p.grad))
    reducer.check()  # all ranks have the same layers and specs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 40, generator=data)
        loss = (model(x) - x[:, :16].sin()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        reducer.finish()  # all gradients are means
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    spec = sys.argv[1] if len(sys.argv) > 1 else "q:4"
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same model on every rank
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 96), torch.nn.ReLU(), torch.nn.Linear(96, 16)
    )  # its gradients are contiguous, in main memory
    reducer = pith.Reducer(GroupCarrier(), spec)
    losses = train(model, reducer, dist.get_rank(), steps=60)
    values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digests: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(values).hexdigest())
    if len(set(digests)) != 1:
        raise SystemExit("ranks have different parameters")
    if dist.get_rank() == 0:
        print(f"{spec} on {len(digests)} ranks: loss {losses[0]:.2f}, in the end {losses[-1]:.2f}")
        print(f"all ranks have the same parameters: {digests[0]:.16}")
    reducer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
