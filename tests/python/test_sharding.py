# SPDX-License-Identifier: Apache-2.0
"""docs/sharding.md: the table of memory follows from its formulas, and these from what compressors of small models keep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import needs
from ranks import run

torch = needs.module("torch", "FSDP2 needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pith.torch  # noqa: E402

PAGE = (Path(__file__).resolve().parents[2] / "docs/sharding.md").read_text()
SHARDS, REPLICAS = 8, 2
STORES = {"": 4.0, ",store=bf16": 2.0, ",store=8": 260 / 256}  # bytes a value


def memory(kept: str, parameters: float, shards: int, replicas: int) -> float:
    """Bytes of a line of the table."""
    if kept.startswith("for comparison"):
        return 16 * parameters / shards
    found = re.search(r"`(ef|delta)(,store=\w+)?/…`", kept)
    if found is None:
        return 0.0  # without a memory
    each = STORES[found[2] or ""]
    if kept.startswith("between replicas"):
        return each * parameters / shards * (1 + 1 / replicas)
    return each * parameters


def test_the_table_of_memory_follows_from_its_formulas() -> None:
    rows = PAGE.split("<!-- table: memory -->\n")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == 10
    for row in rows:
        kept, formula, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        written = formula.replace("·", "*").replace("P", "1e9").replace("S", str(SHARDS))
        written = re.sub(r"\bR\b", str(REPLICAS), written)
        assert eval(written, {}) == pytest.approx(memory(kept, 1e9, SHARDS, REPLICAS)), kept
        for billions, cell in zip((1, 7, 70), cells, strict=True):
            wanted = memory(kept, 1e9 * billions, SHARDS, REPLICAS) / 1e9
            assert float(cell) == pytest.approx(wanted, rel=0.005), (kept, billions)


def kept_bytes(rank: int, size: int) -> list[tuple[str, float, float]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("pith")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = []
    for store in STORES:
        model: Any = fully_shard(nn.Linear(512, 512, bias=False), mesh=mesh)
        delta = f"delta{store}/q:4" if "8" not in store else None
        gradients = f"ef{store}/q:4"
        compressor = pith.torch.compress(model, gradients, replicas=gradients, all_gather=delta)
        model(torch.randn(4, 512)).sum().backward()
        inside, between, *references = (x.numel() for x in compressor.state_dict()["reducers"])
        found.append((f"gradients, `ef{store}/…`", 512 * 512, inside))
        found.append((f"between replicas, `ef{store}/…`", 512 * 512, between))
        for own in references:  # the owner saves its part, and all ranks keep those of all
            found.append((f"parameters, `delta{store}/…`", 512 * 512, 2 * own))
    dist.destroy_process_group()
    return found


def test_the_formulas_are_what_compressors_keep() -> None:
    for of_rank in run(kept_bytes, 4):
        assert len(of_rank) == 8
        for kept, parameters, size in of_rank:
            assert size == pytest.approx(memory(kept, parameters, 2, 2), rel=0.02), kept
