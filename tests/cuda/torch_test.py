# SPDX-License-Identifier: Apache-2.0
"""Compressed DDP on CUDA tensors over NCCL, beside the same on the CPU over gloo: means must have the same bits.

    bench/gpu_lab.sh 2 40gbit tests/cuda/torch_test.py        # ranks that share a GPU
    torchrun --nproc-per-node 2 tests/cuda/torch_test.py      # ranks with a GPU each
    …  topk                                                   # the tests whose names contain this

Prints a line for each method and ends with 1 if one of them failed; one that stands still for two minutes shows where, and ends the run.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pith
import pith.torch
from pith.torch import _carrier, _engine, _fsdp

SAME_BITS = [
    "none",
    "bf16",
    "q:4",
    "q:8",
    "ef/q:4",
    "signsgd",
    "signum",
    "efsignsgd",
    "qsgd",
    "terngrad",
    "natural",
    "hadamard/q:4",
]
SAME_BITS += [
    "topk:0.01",
    "ef/topk:0.01",
    "ef/randomk:0.1",
    "ef/threshold:0.1",
    "dgc:0.01",
    "ef/adaptive:0.01",
]
SHAPES = {"first": (300, 257), "second": (64, 64), "bias": (300,), "third": (1000, 33)}
STEPS, ADAPTIVE_STEPS = 4, 60
PATIENCE = 120  # seconds for one test


class Given(torch.nn.Module):
    """A model whose gradients are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
        )

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum((self.layers[name] * gradient).sum() for name, gradient in gradients.items())


def gradients_of(step: int, low_rank: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    found = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if low_rank:
        for name, (rows, *rest) in SHAPES.items():
            if rest:
                found[name] = torch.randn(rows, 2, generator=generator) @ torch.randn(
                    2, rest[0], generator=generator
                )
    return found


def means_of(
    device: str, group, spec: str, low_rank: bool = False
) -> list[dict[str, torch.Tensor]]:
    model = DistributedDataParallel(Given().to(device), process_group=group)
    compressor = pith.torch.compress(model, spec, seed=3)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        model({name: g.to(device) for name, g in gradients_of(step, low_rank).items()}).backward()
        found.append({name: p.grad.cpu() for name, p in model.module.layers.items()})
        if step == 1:  # a checkpoint changes nothing
            compressor.load_state_dict(compressor.state_dict())
    compressor.stats()
    return found


def errors_of(device: str, group, spec: str) -> dict[str, float | None]:
    """What the table says that encoding loses, after a step in which it was asked for."""
    model = DistributedDataParallel(Given().to(device), process_group=group)
    compressor = pith.torch.compress(model, spec, seed=3)
    for step in range(2):
        compressor.stats()
        model({name: g.to(device) for name, g in gradients_of(step, False).items()}).backward()
    return {line.name: line.error for line in compressor.stats()}


def compare_errors(name: str, groups) -> str:
    """Measured where the gradients are; sums of squares round otherwise there."""
    found, expected = (errors_of(d, groups[d], name.split()[0]) for d in ("cuda", "cpu"))
    for layer, error in expected.items():
        mine = found[layer]
        if mine is None or error is None or abs(mine - error) > 1e-3 * error:
            return f"{layer}: {mine}, not {error}"
    return "" if any(expected.values()) else "nothing is lost"


def compare_over_pith(spec: str, groups) -> str:
    return compare_bits(spec.split()[0], {"cpu": groups["cpu"], "cuda": groups["pith"]})


def compare_asked(name: str, groups) -> str:
    """A group of NCCL whose payloads go from GPU to GPU, because the environment says so."""
    os.environ["PITH_CUDA_CARRIER"] = "ipc"
    try:
        wrong = compare_bits(name.split()[0], groups)
        return wrong or ("" if _carrier._over_pith else "it went over NCCL")
    finally:
        del os.environ["PITH_CUDA_CARRIER"]


def compare_bits(spec: str, groups) -> str:
    return differences(*(means_of(device, groups[device], spec) for device in ("cuda", "cpu")))


def compare_chunks(name: str, groups) -> str:
    """Layers that are large in comparison with a message."""
    usual = _engine.Side
    _engine.Side = functools.partial(usual, chunk_bytes=1 << 15)
    try:
        return compare_bits(name.split()[0], groups)
    finally:
        _engine.Side = usual


def differences(
    on_gpu: list[dict[str, torch.Tensor]], on_cpu: list[dict[str, torch.Tensor]], names=SHAPES
) -> str:
    for step, (ours, theirs) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        for name in names:
            wrong = (ours[name].view(torch.int32) != theirs[name].view(torch.int32)).sum().item()
            if wrong:
                return f"step {step}, {name}: {wrong} of {ours[name].numel()} values differ"
    return ""


def sharded_means_of(device: str, group, spec: str) -> list[dict[str, torch.Tensor]]:
    """The same of a model sharded by FSDP2."""
    model = fully_shard(Given().to(device), mesh=DeviceMesh.from_group(group, device))
    compressor = pith.torch.compress(model, spec, seed=3)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        model({name: g.to(device) for name, g in gradients_of(step, False).items()}).backward()
        found.append({name: p.grad.full_tensor().cpu() for name, p in model.layers.items()})
        if step == 1:
            compressor.load_state_dict(compressor.state_dict())
    compressor.stats()
    return found


def compare_sharded(name: str, groups) -> str:
    spec = name.split()[0]
    return differences(
        *(sharded_means_of(device, groups[device], spec) for device in ("cuda", "cpu"))
    )


def gathered_of(device: str, group, spec: str) -> list[dict[str, torch.Tensor]]:
    """What parameters were gathered as, after updates that have the same bits everywhere."""
    model = fully_shard(Given().to(device), mesh=DeviceMesh.from_group(group, device))
    compressor = pith.torch.compress(model, "none", all_gather=spec, seed=3)
    optimizer, found, seen = torch.optim.SGD(model.parameters(), lr=1.0), [], []
    gather = _fsdp._AllGather.__call__

    def watched(self, output_tensor, input_tensor, *more, **options):
        gather(self, output_tensor, input_tensor, *more, **options)
        seen.append(output_tensor.clone())

    _fsdp._AllGather.__call__ = watched
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            given = {name: _halves(g).to(device) for name, g in gradients_of(step, False).items()}
            model(given).backward()
            optimizer.step()
            found.append({"all": torch.cat([each.float().cpu().view(-1) for each in seen])})
            seen.clear()
            if step == 1:
                compressor.load_state_dict(compressor.state_dict())
    finally:
        _fsdp._AllGather.__call__ = gather
    return found


def _halves(values: torch.Tensor) -> torch.Tensor:
    """Few bits, so that sums are exact in any order."""
    return (values * 8).round() / 8


def compare_gathered(name: str, groups) -> str:
    spec = name.split()[1]
    of = [gathered_of(device, groups[device], spec) for device in ("cuda", "cpu")]
    return differences(*of, names=("all",))


def replicated_of(device: str, meshes, spec: str, between: str) -> list[dict[str, torch.Tensor]]:
    model = fully_shard(Given().to(device), mesh=meshes[device])
    compressor = pith.torch.compress(model, spec, replicas=between, seed=3)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        model({name: g.to(device) for name, g in gradients_of(step, False).items()}).backward()
        found.append({name: p.grad.full_tensor().cpu() for name, p in model.layers.items()})
        if step == 1:
            compressor.load_state_dict(compressor.state_dict())
    if compressor.exact:
        raise pith.Error(f"not compressed: {dict(compressor.exact)}", 0)
    return found


def meshes_of(groups, over: str):
    """Two replicas. Groups of gloo for the CPU, and of the backend that is asked for."""
    every = torch.arange(dist.get_world_size()).view(2, -1)
    found = {}
    for device, backend in (("cuda", over), ("cpu", "gloo")):
        pair = []
        for rows in (every.T.tolist(), every.tolist()):
            made = [dist.new_group(ranks, backend=backend) for ranks in rows]
            pair.append(next(g for g, r in zip(made, rows, strict=True) if dist.get_rank() in r))
        names = ("replicate", "shard")
        found[device] = DeviceMesh.from_group(pair, device, mesh=every, mesh_dim_names=names)
    return found


def compare_replicas(name: str, groups) -> str:
    _, spec, between, over, _ = name.split()
    meshes = meshes_of(groups, over)
    return differences(
        *(replicated_of(device, meshes, spec, between) for device in ("cuda", "cpu"))
    )


def check_sharded_default(name: str, groups) -> str:
    """Without a spec gradients of shards are measured on the device, plans are tried, and means are as exact as the budget allows."""
    mesh = DeviceMesh.from_group(groups["cuda"], "cuda")
    model = fully_shard(Given().cuda(), mesh=mesh)
    compressor = pith.torch.compress(model)
    reasons, worst = set(), 0.0
    for step in range(ADAPTIVE_STEPS):
        model.zero_grad()
        exact = gradients_of(step, False)["first"]
        model({name: g.cuda() for name, g in gradients_of(step, False).items()}).backward()
        dist.all_reduce(exact, group=groups["cpu"])
        exact /= dist.get_world_size()
        found = model.layers["first"].grad.full_tensor().cpu()
        worst = max(worst, ((found - exact).norm() / exact.norm()).item())
        reasons.update(layer.reason for layer in compressor.layers)
    if not any("trial of" in reason or "since step" in reason for reason in reasons):
        return f"nothing was chosen in {ADAPTIVE_STEPS} steps: {reasons}"
    return "" if worst < 0.25 else f"an error of {worst:.2f}"


def check_pending(name: str, groups) -> str:
    """What is owed is that of the CPU, and goes to another compressor."""
    owed = {}
    for device in ("cuda", "cpu"):
        mesh = DeviceMesh.from_group(groups[device], device)
        model = fully_shard(Given().to(device), mesh=mesh)
        pith.torch.compress(model, "ef/topk:0.05", seed=3)
        for step in range(STEPS):
            model.zero_grad()
            model({n: g.to(device) for n, g in gradients_of(step, False).items()}).backward()
        state = pith.torch.Checkpoint(model).state_dict()
        other = fully_shard(Given().to(device), mesh=mesh)
        pith.torch.compress(other, "ef/topk:0.05", seed=3)
        pith.torch.Checkpoint(other).load_state_dict(state)
        again = pith.torch.Checkpoint(other).state_dict()["owed"]
        owed[device] = {n: v.full_tensor().cpu() for n, v in state["owed"].items()}
        for n, value in again.items():
            if not torch.allclose(value.full_tensor().cpu(), owed[device][n], atol=1e-5):
                return f"{n} on {device}: what was loaded is not what was saved"
    for n, value in owed["cuda"].items():
        if not torch.allclose(value, owed["cpu"][n], atol=1e-5) or not value.abs().max() > 0.1:
            return f"{n}: what is owed on the GPU is not that of the CPU"
    return ""


def compare_adaptive(spec: str, groups) -> str:
    """Plans change specs between steps, the same on all ranks; nothing is lost on the way: the sum of all means is that of the gradients."""
    model = DistributedDataParallel(Given().cuda(), process_group=groups["cuda"])
    pith.torch.compress(model, spec, seed=3)
    reasons, sent, exact = set(), 0.0, 0.0
    for step in range(ADAPTIVE_STEPS):
        model.zero_grad()
        given = gradients_of(step, False)["first"]
        model({name: g.cuda() for name, g in gradients_of(step, False).items()}).backward()
        sent, exact = sent + model.module.layers["first"].grad.cpu(), exact + given
        reasons.add(pith.torch.stats(model)["layers.first"].reason)
    dist.all_reduce(exact, group=groups["cpu"])
    exact /= dist.get_world_size()
    error = ((sent - exact).norm() / exact.norm()).item()
    if not any("plan of step" in reason for reason in reasons):
        return f"no plan in {ADAPTIVE_STEPS} steps: {reasons}"
    return "" if error < 0.5 else f"an error of {error:.2f} after {ADAPTIVE_STEPS} steps"


def check_default(name: str, groups) -> str:
    """Without a spec gradients are measured on the device, and means are exact to what the budget allows."""
    model = DistributedDataParallel(Given().cuda(), process_group=groups["cuda"])
    pith.torch.compress(model)
    reasons, worst = set(), 0.0
    for step in range(ADAPTIVE_STEPS):
        model.zero_grad()
        exact = gradients_of(step, False)["first"]
        model({name: g.cuda() for name, g in gradients_of(step, False).items()}).backward()
        dist.all_reduce(exact, group=groups["cpu"])
        exact /= dist.get_world_size()
        found = model.module.layers["first"].grad.cpu()
        worst = max(worst, ((found - exact).norm() / exact.norm()).item())
        reasons.add(pith.torch.stats(model)["layers.first"].reason)
    if not any("trial of" in reason or "since step" in reason for reason in reasons):
        return f"nothing was chosen in {ADAPTIVE_STEPS} steps: {reasons}"
    return "" if worst < 0.25 else f"an error of {worst:.2f}"


def compare_low_rank(spec: str, groups) -> str:
    """Gradients of rank 2 on each of n ranks have a mean of rank 2n, which factors of that rank hold exactly; with what was lost of the
    ranks' own ones it has more, from the second step on."""
    for step, means in enumerate(
        means_of("cuda", groups["cuda"], spec, low_rank=True)[
            : 1 if spec.startswith("ef") else STEPS
        ]
    ):
        for name, mean in means.items():
            exact = gradients_of(step, True)[name]
            dist.all_reduce(exact, group=groups["cpu"])
            exact /= dist.get_world_size()
            error = ((mean - exact).norm() / exact.norm()).item()
            if not error < 1e-4:
                return f"step {step}, {name}: an error of {error:.2e}"
    return ""


def compare_backend(_: str, groups) -> str:
    """Collectives of the backend pith on CUDA tensors, behind work that the stream has not done yet."""
    group, rank, ranks = groups["pith"], dist.get_rank(), dist.get_world_size()
    x = torch.full((1000, 7), float(rank + 1), device="cuda")
    for _ in range(50):
        x = x @ torch.eye(7, device="cuda")
    total = x.clone()
    dist.all_reduce(total, group=group)
    parts = torch.empty(ranks * 1000, 7, device="cuda")
    dist.all_gather_into_tensor(parts, x.t().contiguous().t(), group=group)  # not contiguous
    swapped = torch.empty(ranks * 10, device="cuda")
    dist.all_to_all_single(
        swapped,
        torch.arange(ranks * 10, device="cuda", dtype=torch.float32) + 100 * rank,
        group=group,
    )
    work = dist.all_reduce(y := x.clone(), group=group, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    wanted = float(ranks * (ranks + 1) // 2)
    swaps = torch.cat([torch.arange(10.0) + 10 * rank + 100 * other for other in range(ranks)])
    if not (total == wanted).all() or not (y == wanted).all() or not (doubled == 2 * wanted).all():
        return "all_reduce is wrong"
    if not all((parts[1000 * r : 1000 * (r + 1)] == r + 1).all() for r in range(ranks)):
        return "all_gather is wrong"
    return "" if torch.equal(swapped.cpu(), swaps) else "all_to_all is wrong"


def main() -> None:
    if not torch.cuda.is_available():
        print("skip: there is no GPU")
        return
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    groups = {
        "cpu": dist.new_group(backend="gloo"),
        "cuda": dist.group.WORLD,
        "pith": dist.new_group(backend="pith"),
    }
    tests = [("collectives over pith", compare_backend)]
    tests += [(spec, compare_bits) for spec in SAME_BITS]
    tests += [(f"{spec} over pith", compare_over_pith) for spec in ("q:4", "ef/topk:0.01")]
    tests += [(f"{spec} asked for ipc", compare_asked) for spec in ("q:4", "ef/topk:0.01")]
    tests += [(f"{spec} in chunks", compare_chunks) for spec in ("none", "q:4", "ef/q:4", "signum")]
    tests += [
        (f"{spec} sharded", compare_sharded)
        for spec in ("none", "bf16", "q:4", "ef/q:4", "terngrad", "signsgd", "ef/topk:0.01")
    ]
    tests += [
        (f"gathered {spec} sharded", compare_gathered)
        for spec in ("q:8", "delta/q:4", "delta:2,fresh=8/q:4", "delta,store=bf16/q:4")
    ]
    tests += [
        (f"replicas {spec} {between} {over} sharded", compare_replicas)
        for spec, between in (("none", "q:4"), ("q:4", "ef/q:2"), ("none", "ef/topk:0.05"))
        for over in ("nccl", "pith")
    ]
    tests += [
        ("the default sharded", check_sharded_default),
        ("what is owed sharded", check_pending),
    ]
    tests += [
        (spec, compare_adaptive)
        for spec in ("lgreco:q:4,period=32", "lgreco:ef/topk:0.1,period=32")
    ]
    tests += [
        (f"{spec} in the table", compare_errors)
        for spec in ("q:4", "ef,store=8/q:4", "hadamard/q:4", "ef/topk:0.01", "dgc:0.01")
    ]
    tests += [("the default", check_default)]
    tests += [
        (f"{memory}powersgd:{2 * dist.get_world_size()}", compare_low_rank)
        for memory in ("", "ef/")
    ]
    tests = [
        (name, compare) for name, compare in tests if all(part in name for part in sys.argv[1:])
    ]
    failed = 0
    for spec, compare in tests:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            wrong = compare(spec, groups)
        except pith.Error as error:
            wrong = str(error)
        failed += bool(wrong)
        if dist.get_rank() == 0:
            print(f"FAIL {spec}: {wrong}" if wrong else f"ok   {spec}", flush=True)
    dist.destroy_process_group()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
