# SPDX-License-Identifier: Apache-2.0
"""accelerate, the Trainer of transformers and Lightning with compressed gradients: two ranks on the CPU, over pith and gloo.

Each library is imported by one group of ranks, which does everything that its tests look at: starting one takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import needs
import pith
from pages import Block, blocks_of, commands_of
from ranks import run

torch = needs.module("torch", "the libraries need torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pith.torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/frameworks.md"
SECONDS = 300  # of all that one library does
BACKENDS = ("pith", "gloo")


def need(*names: str) -> None:
    """Importing some of them takes seconds: whether they are there is enough here."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            needs.lacks(name, f"{name} is not installed: tools/python-env installs it")


def as_under_torchrun(rank: int, size: int) -> None:
    """What torchrun says in the environment."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ["TORCHELASTIC_RUN_ID"] = "test"


def begin(rank: int, size: int, folder: str, backend: str) -> None:
    """A process group that libraries take as it is."""
    as_under_torchrun(rank, size)
    dist.init_process_group(backend, f"file://{folder}/{backend}", rank=rank, world_size=size)


def bits(model: nn.Module) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def error_of(call: Any) -> str:
    try:
        call()
    except pith.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# ---- accelerate ------------------------------------------------------------------------------------------------------


def accelerated(rank: int, size: int, folder: str) -> dict[str, Any]:
    from accelerate import Accelerator

    found: dict[str, Any] = {}
    for backend in BACKENDS:
        begin(rank, size, folder, backend)
        runs = [
            accelerated_run(Accelerator(cpu=True), f"{folder}/state-{backend}", way)
            for way in ("whole", "resumed", "forgotten")
        ]
        found[backend] = {"backend": dist.get_backend(), "runs": runs}
        dist.destroy_process_group()
    return found


def accelerated_run(accelerator: Any, folder: str, way: str) -> dict[str, Any]:
    """Eight steps; saved after four, and in another way than "whole" begun there."""
    from pith.torch.accelerate import keep_state

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 120), nn.Tanh(), nn.Linear(120, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(64, 40, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = pith.torch.compress(prepared, "ef/q:4")
    if way != "forgotten":
        keep_state(accelerator, handle)
    if way != "whole":
        accelerator.load_state(folder)
    losses = []
    for step, batch in enumerate(loader):
        if way != "whole" and step < 4:
            continue
        if way == "whole" and step == 4:
            accelerator.save_state(folder)
        optimizer.zero_grad()
        loss = (prepared(batch) - batch[:, :20]).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    table = pith.torch.stats(prepared)
    kind = type(prepared).__name__
    return {
        "bits": bits(model),
        "losses": losses,
        "names": [line.name for line in table],
        "ratio": table.ratio,
        "kind": kind,
    }


def test_accelerate_trains_compressed_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    need("accelerate")
    first, second = run(accelerated, 2, str(tmp_path), seconds=SECONDS)
    for backend in BACKENDS:
        whole, resumed, forgotten = first[backend]["runs"]
        assert first[backend]["backend"] == backend
        assert whole["kind"] == "DistributedDataParallel" and whole["ratio"] > 5
        assert whole["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert whole["losses"][-1] < whole["losses"][0]
        assert len(resumed["losses"]) == 4 and resumed["bits"] == whole["bits"]
        assert (
            forgotten["bits"] != whole["bits"]
        )  # residuals matter, so the comparison above can fail
        assert [r["bits"] for r in first[backend]["runs"]] == [
            r["bits"] for r in second[backend]["runs"]
        ]


# ---- transformers ----------------------------------------------------------------------------------------------------


def tiny_gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLMLoss")
    )


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from somewhere."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = (torch.arange(16) + 7 * index) % 64
        return {"input_ids": tokens, "labels": tokens}


def trainer_of(model: Any, folder: str, callback: Any, steps: int = 8, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder, use_cpu=True, max_steps=steps, per_device_train_batch_size=2, learning_rate=0.01, save_steps=4,
        logging_steps=1, report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=Counting(), callbacks=[callback])


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trained(rank: int, size: int, folder: str) -> dict[str, Any]:
    from pith.torch.transformers import PithCallback

    found: dict[str, Any] = {}
    for backend in BACKENDS:
        begin(rank, size, folder, backend)
        out = f"{folder}/trainer-{backend}"
        callback = PithCallback("ef/q:4")
        whole = trainer_of(tiny_gpt(), out, callback)
        whole.train()
        table = callback.compressor.stats()
        seen = {
            "backend": dist.get_backend(),
            "whole": bits(whole.model),
            "losses": losses_of(whole),
            "names": [line.name for line in table]
            == [name for name, _ in whole.model.named_parameters()],
            "spec": table["transformer.h.0.mlp.c_fc.weight"].spec,
            "ratio": table.ratio,
            "files": sorted(path.name for path in Path(out, "checkpoint-4").glob("pith-*")),
        }
        for name, settings in (("resumed", {}), ("forgotten", {"restore": False})):
            trainer = trainer_of(tiny_gpt(), out, PithCallback("ef/q:4", **settings))
            trainer.train(resume_from_checkpoint=f"{out}/checkpoint-4")
            seen[name] = bits(trainer.model)
        seen |= elsewhere(out, rank) | twice(whole, callback, out)
        if backend == "gloo":
            seen["sharded"] = sharded(rank, size)
        found[backend] = seen
        dist.destroy_process_group()
    return found


def elsewhere(out: str, rank: int) -> dict[str, Any]:
    """Resumed from a checkpoint that is not in the output folder; from one without states; and with those of other weights."""
    from pith.torch.transformers import PithCallback

    other = f"{out}-moved"
    if rank == 0:
        shutil.copytree(f"{out}/checkpoint-4", f"{other}/checkpoint-4")
    dist.barrier()
    moved = trainer_of(
        tiny_gpt(), f"{out}-2", PithCallback("ef/q:4", checkpoint=f"{other}/checkpoint-4")
    )
    moved.train(resume_from_checkpoint=f"{other}/checkpoint-4")
    unknown = trainer_of(tiny_gpt(), f"{out}-3", PithCallback("ef/q:4"))
    with pytest.warns(UserWarning, match="has no state of a compressor"):
        unknown.train(resume_from_checkpoint=f"{other}/checkpoint-4")
    wrong = trainer_of(tiny_gpt(), out, PithCallback("ef/q:4", checkpoint=f"{out}/checkpoint-8"))
    error = error_of(lambda: wrong.train(resume_from_checkpoint=f"{out}/checkpoint-4"))
    dist.barrier()
    if rank == 1:
        os.remove(f"{other}/checkpoint-4/pith-rank1.pt")
    dist.barrier()
    half = trainer_of(tiny_gpt(), out, PithCallback("ef/q:4", checkpoint=f"{other}/checkpoint-4"))
    missing = error_of(lambda: half.train(resume_from_checkpoint=f"{other}/checkpoint-4"))
    return {"moved": bits(moved.model), "wrong": error, "missing": missing}


def sharded(rank: int, size: int) -> str:
    """The trainer shows its callbacks the sharded model itself. accelerate shards on GPUs only, so the trainer is left out."""
    from types import SimpleNamespace

    from torch.distributed.fsdp import fully_shard

    from pith.torch.transformers import PithCallback

    model = tiny_gpt()
    fully_shard(model)
    callback = PithCallback("q:4", all_gather="q:8")
    callback.on_train_begin(
        SimpleNamespace(world_size=size),
        SimpleNamespace(global_step=0, max_steps=1),
        None,
        model=model,
    )
    tokens = torch.arange(16).expand(2, 16)
    model(input_ids=tokens, labels=tokens).loss.backward()
    line = callback.compressor.stats()["transformer.wte.weight"]
    return f"{type(callback.compressor).__name__} {line.spec} {line.steps}"


def twice(trainer: Any, callback: Any, out: str) -> dict[str, Any]:
    """A second train() of a trainer, and another trainer for the model."""
    from pith.torch.transformers import PithCallback

    trainer.train()
    steps = callback.compressor.stats()["transformer.wte.weight"].steps
    another = PithCallback("q:2")
    later = trainer_of(trainer.model, f"{out}-4", another, steps=2)
    later.train()
    line = another.compressor.stats()["transformer.wte.weight"]
    handle = pith.torch.compressor(later.model_wrapped)
    return {
        "steps": steps,
        "second": (line.spec, line.steps),
        "getter": handle is another.compressor,
        "last": bits(later.model),
    }


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    need("transformers", "accelerate")
    return run(trained, 2, str(tmp_path_factory.mktemp("trainer")), seconds=SECONDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_trainer_of_transformers_trains_compressed(trainers: list[Any], backend: str) -> None:
    first, second = (rank[backend] for rank in trainers)
    assert first["backend"] == backend
    assert len(first["losses"]) == 8 and first["losses"][-1] < 0.95 * first["losses"][0]
    assert first["whole"] == second["whole"]
    assert first["spec"] == "ef/q:4" and first["ratio"] > 4 and first["names"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_trainer_of_transformers_resumes_with_the_same_bits(
    trainers: list[Any], backend: str
) -> None:
    for found in (rank[backend] for rank in trainers):
        assert found["files"] == ["pith-rank0.pt", "pith-rank1.pt"]
        assert found["resumed"] == found["whole"] and found["moved"] == found["whole"]
        assert found["forgotten"] != found["whole"]
        assert (
            found["wrong"].startswith(("StateError", "MismatchError"))
            and "other weights" in found["wrong"]
        )
        assert "MismatchError" in found["missing"] and "missing on rank 1" in found["missing"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_trainer_of_transformers_trains_a_model_twice(
    trainers: list[Any], backend: str
) -> None:
    first, second = (rank[backend] for rank in trainers)
    assert first["steps"] == 16  # the trainer kept its model, and so its compressor
    assert first["second"] == ("q:2", 2) and first["getter"]
    assert first["last"] == second["last"] != first["whole"]


def test_the_callback_for_transformers_compresses_a_sharded_model(trainers: list[Any]) -> None:
    assert [rank["gloo"]["sharded"] for rank in trainers] == ["ShardedCompressor q:4 1"] * 2


# ---- Lightning -------------------------------------------------------------------------------------------------------


def lightning_module() -> Any:
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(40, 120), nn.Tanh(), nn.Linear(120, 20))
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.net(batch) - batch[:, :20]).pow(2).mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def train_dataloader(self) -> Any:
            data = torch.randn(32, 40, generator=torch.Generator().manual_seed(1))
            return torch.utils.data.DataLoader(
                data, batch_size=4
            )  # an epoch is four steps of each rank

    return Net()


def fit(
    strategy: Any,
    callbacks: list[Any],
    folder: str,
    ckpt_path: str | None = None,
    model: Any = None,
) -> tuple[Any, Any]:
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(
        folder, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True
    )
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, callbacks=[keep, *callbacks], logger=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    model = model if model is not None else lightning_module()
    trainer.fit(model, ckpt_path=ckpt_path)
    return model, trainer


def fitted(rank: int, size: int, folder: str) -> dict[str, Any]:
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
    from lightning.pytorch.strategies import DDPStrategy

    from pith.torch.lightning import PithCallback

    class Registering(DDPStrategy):
        """Does on the CPU what Lightning does for GPUs only."""

        def _register_ddp_hooks(self) -> None:
            _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook)

    def hooked(kind: Any) -> Any:
        return kind(ddp_comm_state=pith.torch.HookState("ef/q:4"), ddp_comm_hook=pith.torch.hook)

    found: dict[str, Any] = {}
    for backend in BACKENDS:
        begin(rank, size, folder, backend)
        out = f"{folder}/lightning-{backend}"
        callback = PithCallback("ef/q:4")
        whole, trainer = fit(DDPStrategy(), [callback], f"{out}/whole")
        table = callback.compressor.stats()
        seen = {
            "backend": dist.get_backend(),
            "whole": bits(whole),
            "losses": whole.losses,
            "names": [line.name for line in table],
            "ratio": table.ratio,
        }
        half = f"{out}/whole/epoch=0.ckpt"

        def go_on(name: str, strategy: Any, *callbacks: Any, ckpt_path: str | None = half) -> Any:
            model, trainer = fit(strategy, list(callbacks), f"{out}/{name}", ckpt_path)  # noqa: B023
            seen[name] = bits(model)  # noqa: B023
            return trainer

        go_on("resumed", DDPStrategy(), PithCallback("ef/q:4"))
        go_on("forgotten", DDPStrategy(), PithCallback("ef/q:4", restore=False))
        files = {"folder": f"{out}/states"}
        go_on("in files", DDPStrategy(), PithCallback("ef/q:4", **files), ckpt_path=None)
        go_on(
            "resumed from files",
            DDPStrategy(),
            PithCallback("ef/q:4", **files),
            ckpt_path=f"{out}/in files/epoch=0.ckpt",
        )
        go_on("hook", hooked(Registering), ckpt_path=None)
        go_on("hook on CPU", hooked(DDPStrategy), PithCallback(), ckpt_path=None)
        keeper = PithCallback()
        trainer = go_on("hook resumed", hooked(Registering), keeper)
        trainer.fit_loop.max_epochs = 3
        trainer.fit(trainer.lightning_module)  # again, in a new DDP
        seen["steps"] = keeper.compressor.stats()["net.0.weight"].steps
        both, files = [PithCallback("q:4")], f"{out}/in files/epoch=0.ckpt"
        seen["both"] = error_of(partial(fit, hooked(DDPStrategy), both, out))
        seen["no folder"] = error_of(
            partial(fit, DDPStrategy(), [PithCallback("ef/q:4")], out, files)
        )
        if backend == "pith":
            seen["fabric"] = with_fabric()
        found[backend] = seen
        dist.destroy_process_group()
    return found


def with_fabric() -> list[str]:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy())
    fabric.launch()
    model = nn.Sequential(nn.Linear(40, 120), nn.Linear(120, 20))
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pith.torch.compress(wrapped, "q:4")
    fabric.backward(wrapped(torch.ones(4, 40)).pow(2).mean())
    optimizer.step()
    table = pith.torch.stats(wrapped)
    assert table["0.weight"].steps == 1
    return [line.name for line in table]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    need("lightning")
    return run(fitted, 2, str(tmp_path_factory.mktemp("lightning")), seconds=SECONDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lightning_trains_compressed_with_the_callback(fits: list[Any], backend: str) -> None:
    first, second = (rank[backend] for rank in fits)
    assert first["backend"] == backend
    assert len(first["losses"]) == 8 and first["losses"][-1] < first["losses"][0]
    assert first["names"] == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert first["ratio"] > 5
    assert first["whole"] == second["whole"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_lightning_resumes_with_the_same_bits(fits: list[Any], backend: str) -> None:
    for found in (rank[backend] for rank in fits):
        assert found["resumed"] == found["whole"]
        assert found["in files"] == found["resumed from files"] == found["whole"]
        assert found["hook resumed"] == found["whole"]
        assert found["forgotten"] != found["whole"]
        assert "give PithCallback(folder=…)" in found["no folder"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_lightning_takes_the_hook(fits: list[Any], backend: str) -> None:
    for found in (rank[backend] for rank in fits):
        assert found["hook"] == found["hook on CPU"] == found["whole"]
        assert found["steps"] == 8  # four after the checkpoint, four of the second fit()
        assert "give the spec to that" in found["both"]


def test_fabric_hands_out_a_model_that_is_found(fits: list[Any]) -> None:
    assert [rank["pith"]["fabric"] for rank in fits] == [
        ["0.weight", "0.bias", "1.weight", "1.bias"]
    ] * 2


# ---- Momentum --------------------------------------------------------------------------------------------------------


def with_momentum(rank: int, size: int, folder: str, library: str) -> list[Any]:
    """A run, and one that goes on from its middle, where momentum travels already: losses, bits and phases."""
    begin(rank, size, folder, "pith")
    if library == "transformers":
        from pith.torch.transformers import PithCallback

        def callback(spec: str = "moment:2,freeze=0.25/onebit") -> Any:
            return PithCallback(spec)

        def go(callback: Any, resume: Any = None) -> tuple[list[float], bytes]:
            trainer = trainer_of(tiny_gpt(), f"{folder}/trainer", callback)
            trainer.train(resume_from_checkpoint=resume)
            return losses_of(trainer)[-4:], bits(trainer.model)

        half = f"{folder}/trainer/checkpoint-4"
    else:
        from lightning.pytorch.strategies import DDPStrategy

        from pith.torch.lightning import PithCallback

        def callback(spec: str = "moment/onebit") -> Any:
            return PithCallback(spec)

        def go(callback: Any, resume: Any = None) -> tuple[list[float], bytes]:
            model, _ = fit(DDPStrategy(), [callback], f"{folder}/fit", resume)
            return model.losses[-4:], bits(model)

        half = f"{folder}/fit/epoch=0.ckpt"
    found: list[Any] = []
    for resume in (None, half):
        made = callback()
        found.append((*go(made, resume), made.compressor.stats().moments.phase))
        dist.barrier()
    made = callback("auto")
    go(made)
    table = made.compressor.stats()
    found.append((max(table, key=lambda line: line.n).reason, table.moments.phase))
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_trainers_send_momentum_and_resume_with_the_same_bits(library: str, tmp_path: Path) -> None:
    need(library)
    found = run(with_momentum, 2, str(tmp_path), library, seconds=SECONDS)
    for whole, resumed, (reason, phase) in found:
        assert whole == resumed
        assert reason.startswith("auto,delayed=0"), "auto knows the optimizer of the trainer"
        assert ("is tried when" if library == "transformers" else "not with SGD") in phase
        assert whole[2] == ("frozen at step 2" if library == "transformers" else "frozen at step 1")
    assert found[0][0][1] == found[1][0][1]


# ---- The page --------------------------------------------------------------------------------------------------------

LIBRARIES = {
    "accelerate": ("accelerate",),
    "trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
}
TABLE = "\nall    "  # the last line of the statistics


def page_blocks() -> dict[str, Block]:
    return {block.name: block for block in blocks_of(PAGE, (ROOT / PAGE).read_text())}


def script(rank: int, size: int, code: str, folder: str) -> str:
    """Runs a block as a script and returns what it prints; faster than torchrun, since torch is there."""
    as_under_torchrun(rank, size)
    os.chdir(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    return said.getvalue()


@pytest.mark.parametrize("name", ["accelerate", "trainer", "lightning", "compile", "fsdp2"])
def test_the_recipes_run(name: str, tmp_path: Path) -> None:
    need(*LIBRARIES.get(name, ()))
    first, second = run(script, 2, page_blocks()[name].code, str(tmp_path), seconds=SECONDS)
    assert TABLE in first and TABLE not in second


def test_the_recipe_for_torchrun_runs_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(page_blocks()["torchrun"].code)
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += commands_of(page_blocks()["start"].code)[0].split()[1:]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert TABLE in done.stdout


def test_every_recipe_of_the_page_has_a_test() -> None:
    assert sorted(page_blocks()) == sorted([*LIBRARIES, "torchrun", "start", "compile", "fsdp2"])
