# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT with the Trainer of transformers and with Lightning, compressed by q:4, on two ranks over NCCL.

    python tests/cuda/frameworks.py            two ranks; they share a GPU through its multi-process service if there is one GPU only
    python tests/cuda/frameworks.py --cpu      the same with a smaller model over gloo

Prints a line for each check, and ends with 1 if one fails or if ranks take longer than LIMIT seconds. Needs torch, transformers,
accelerate, lightning and Pith with its CUDA module.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RANKS, STEPS, LIMIT = 2, 40, 170
SPEC = "q:4"
ON_CPU = "--cpu" in sys.argv[1:]
SIZES = (
    {"n_embd": 64, "n_layer": 2, "n_head": 2}
    if ON_CPU
    else {"n_embd": 384, "n_layer": 6, "n_head": 6}
)
VOCABULARY, LENGTH, BATCH = 256, 64, 8


# ---- Starting ranks --------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def sharing_a_gpu(folder: str) -> Any:
    """The multi-process service of CUDA, which lets kernels of two ranks run side by side on one GPU."""
    control = shutil.which("nvidia-cuda-mps-control")
    if ON_CPU or gpus() >= RANKS or control is None:
        yield {}
        return
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
    }
    for path in environment.values():
        os.makedirs(path)
    subprocess.run([control, "-d"], env=os.environ | environment, check=True)
    try:
        yield environment
    finally:
        subprocess.run(
            [control], input="quit\n", text=True, env=os.environ | environment, check=False
        )


def gpus() -> int:
    """Counted by another process: this one must not open the GPU before the service runs."""
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout
    return len(listed.splitlines())


def start_ranks() -> int:
    with tempfile.TemporaryDirectory() as folder, sharing_a_gpu(folder) as extra:
        shared = ON_CPU or gpus() < RANKS  # on one device
        common = {
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OUTPUT": f"{folder}/output",
        }
        if shared:
            common |= {"NCCL_SOCKET_IFNAME": "lo"}
        started = []
        for rank in range(RANKS):
            mine = {
                "RANK": str(rank),
                "LOCAL_RANK": "0" if shared else str(rank),
                "NODE_RANK": str(rank) if shared else "0",
            }
            if shared:
                mine["NCCL_HOSTID"] = f"host{rank}"  # NCCL refuses two ranks of one host on one GPU
            environment = (
                os.environ
                | extra
                | common
                | mine
                | {"TOKENIZERS_PARALLELISM": "false", "PITH_SHARED": str(int(shared))}
            )
            started.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
        return wait_for(started)


def wait_for(started: list[subprocess.Popen[bytes]]) -> int:
    end = time.monotonic() + LIMIT
    while any(process.poll() is None for process in started):
        failed = any(process.poll() not in (None, 0) for process in started)
        if failed:
            end = min(end, time.monotonic() + 10)  # the others report what they know
        if time.monotonic() > end:
            print(
                "FAIL ranks are stopped: "
                + ("one has failed" if failed else f"not done in {LIMIT} s"),
                flush=True,
            )
            for process in started:
                process.kill()
        time.sleep(0.2)
    codes = [process.wait() for process in started]
    print(
        "ok   all checks passed" if not any(codes) else f"FAIL ranks ended with {codes}", flush=True
    )
    return int(any(codes))


# ---- A rank ----------------------------------------------------------------------------------------------------------


def main() -> int:
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel

    import pith.torch

    rank, failures = int(os.environ["RANK"]), []
    if not ON_CPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if ON_CPU else "nccl")

    def check(what: str, passed: bool, detail: str = "") -> None:
        if not passed:
            failures.append(what)
        if rank == 0 or not passed:
            print(
                f"{'ok  ' if passed else 'FAIL'} rank {rank}: {what}{': ' if detail else ''}{detail}",
                flush=True,
            )

    def gpt() -> Any:
        torch.manual_seed(0)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **SIZES
            )
        )

    class Counting(torch.utils.data.Dataset):  # type: ignore[type-arg]
        """Sequences that count up from somewhere: a model learns them in some tens of steps."""

        def __len__(self) -> int:
            return STEPS * BATCH * RANKS

        def __getitem__(self, index: int) -> dict[str, Any]:
            tokens = (torch.arange(LENGTH) + 37 * index) % VOCABULARY
            return {"input_ids": tokens, "labels": tokens}

    def same_on_all_ranks(model: Any) -> bool:
        mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).view(torch.int32)
        mine = (
            mine if ON_CPU else mine.cuda()
        )  # Lightning moves a model back to the CPU when it is done
        everyone = [torch.empty_like(mine) for _ in range(RANKS)]
        dist.all_gather(everyone, mine)
        return all(torch.equal(theirs, everyone[0]) for theirs in everyone)

    def inspect(
        name: str, model: Any, losses: list[float], handle: Any, device: str, spec: str = SPEC
    ) -> None:
        first, last = losses[0], sum(losses[-5:]) / 5
        check(
            f"{name}: the loss falls",
            last < 0.7 * first,
            f"{first:.3f} in step 1, {last:.3f} in the last five of {len(losses)}",
        )
        check(f"{name}: all ranks hold the same bits", same_on_all_ranks(model))
        table = handle.stats()
        (line,) = [line for line in table if line.name.endswith("h.0.mlp.c_fc.weight")]
        used = line.spec == spec and line.steps == len(losses) and line.ratio > 5
        check(
            f"{name}: {spec} was used",
            used,
            f"{line.name} {line.spec}, {line.steps} steps, ratio {line.ratio:.1f}, all {table.ratio:.1f}",
        )
        expected = ("cpu", "gloo") if ON_CPU else ("cuda", "nccl")
        check(
            f"{name}: on {expected[0]} over {expected[1]}",
            (device, str(dist.get_backend(handle.group))) == expected,
        )

    for train in (with_trainer, with_lightning):
        begun = time.monotonic()
        train(check, gpt, Counting(), inspect, pith.torch)
        if rank == 0:
            print(f"     {train.__name__} took {time.monotonic() - begun:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(failures))


def with_trainer(check: Any, gpt: Any, data: Any, inspect: Any, _: Any) -> None:
    from transformers import Trainer, TrainingArguments

    from pith.torch.transformers import PithCallback

    output = os.environ["OUTPUT"] + "-trainer"

    def trained(steps: int, resume: str | None = None) -> tuple[Any, Any]:
        arguments = TrainingArguments(
            output, use_cpu=ON_CPU, max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=2e-3, warmup_steps=5,
            lr_scheduler_type="constant_with_warmup", logging_steps=1, save_steps=STEPS // 2, report_to=[], disable_tqdm=True,
            dataloader_num_workers=0,
        )  # fmt: skip
        callback = PithCallback(SPEC)
        trainer = Trainer(gpt(), arguments, train_dataset=data, callbacks=[callback])
        trainer.pop_callback(printing())  # its losses are in the log history
        trainer.train(resume_from_checkpoint=resume)
        return trainer, callback.compressor

    trainer, handle = trained(STEPS)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    inspect("Trainer", trainer.model, losses, handle, trainer.model.device.type)
    checkpoint = Path(output, f"checkpoint-{STEPS // 2}")
    files = sorted(path.name for path in checkpoint.glob("pith-rank*.pt"))
    check(
        "Trainer: each rank has a file in the checkpoint",
        files == ["pith-rank0.pt", "pith-rank1.pt"],
        ", ".join(files),
    )
    again, handle = trained(STEPS // 2 + 5, str(checkpoint))
    losses = [entry["loss"] for entry in again.state.log_history if "loss" in entry]
    went_on = (
        handle.stats().ratio > 4 and len(losses) == STEPS // 2 + 5 and losses[-1] < 0.8 * losses[0]
    )
    check(
        "Trainer: goes on from the checkpoint",
        went_on,
        f"loss {losses[-1]:.3f} in step {len(losses)}",
    )


def printing() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def with_lightning(check: Any, gpt: Any, data: Any, inspect: Any, pith_torch: Any) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    from pith.torch.lightning import PithCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gpt, self.losses = gpt(), []

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.gpt(**batch).loss
            self.losses.append(loss.detach())
            self.trained_on = loss.device.type
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(data, batch_size=BATCH)

    def fitted(strategy: Any, callback: Any) -> tuple[Any, Any]:
        shared = (
            os.environ["PITH_SHARED"] == "1"
        )  # two "nodes" with one device each, since ranks have the same GPU
        trainer = Trainer(
            accelerator="cpu" if ON_CPU else "gpu", devices=1 if shared else RANKS, num_nodes=RANKS if shared else 1, strategy=strategy,
            max_steps=STEPS, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        module = Module()
        trainer.fit(module)
        return module, trainer

    callback = PithCallback(SPEC)
    module, trainer = fitted(DDPStrategy(), callback)
    inspect(
        "Lightning, callback",
        module,
        [float(loss) for loss in module.losses],
        callback.compressor,
        module.trained_on,
    )
    path = os.environ["OUTPUT"] + "-lightning.ckpt"
    trainer.save_checkpoint(path)
    states = torch.load(path, map_location="cpu", weights_only=False)["pith"]["states"]
    check("Lightning, callback: the checkpoint has the states of all ranks", len(states) == RANKS)

    state = pith_torch.HookState("ef/q:4")
    strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=pith_torch.hook)
    keeper = PithCallback()  # without a spec: registers the hook on CPUs, where Lightning does not
    module, _ = fitted(strategy, keeper)
    check(
        "Lightning, ddp_comm_hook: the state is that of the model",
        keeper.compressor is state._compressor,
    )
    inspect(
        "Lightning, ddp_comm_hook",
        module,
        [float(loss) for loss in module.losses],
        keeper.compressor,
        module.trained_on,
        "ef/q:4",
    )


if __name__ == "__main__":
    sys.exit(main() if "RANK" in os.environ else start_ranks())
