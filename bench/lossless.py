# SPDX-License-Identifier: Apache-2.0
"""What do `lossless` and the small floats make of the gradients and weights of a GPT?

    python bench/lossless.py             # sizes and speeds beside zstd and lz4, errors at equal bits
    python bench/lossless.py --json FILE

Trains a small GPT (examples/pytorch/gpt.py) for some steps on the text that every Python has, and takes all gradients of two steps and the weights
at the end, rounded to bf16. `lossless` is beside zstd -1 and lz4 (their commands, left out where they are not installed), and beside
the entropy of exponents, which no coding of single exponents beats: sizes as shares of the input, speeds in one thread as multiples of a memcpy
timed in turns. Then the relative squared error of 4-bit formats at the same number of bits.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pith
from pith import _library as c
from pith._codec import context, view_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

STEPS = (20, 120)
WIDTH, LAYERS = 256, 4
TURNS = 7
BLOCK = 1024
FOUR_BITS = ("mxfp4", "nvfp4", "q:4,bucket=256", "q:4,bucket=128", "q:4")


def recorded(steps: tuple[int, ...]) -> dict[str, list[np.ndarray]]:
    """Matrices of a training as f32: gradients at some steps, and the weights after the last."""
    torch.manual_seed(1)
    text = gpt.read_text(None)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    encoded = torch.tensor([symbols[c] for c in text])
    model = gpt.GPT(len(symbols), WIDTH, LAYERS, WIDTH // 64, 64)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    batches = gpt.batches(encoded, 8, 64, torch.Generator().manual_seed(1))
    found: dict[str, list[np.ndarray]] = {}
    for step, batch in zip(range(1, max(steps) + 1), batches, strict=False):
        optimizer.zero_grad(set_to_none=True)
        gpt.loss_of(model, batch).backward()
        if step in steps:
            found[f"gradients, step {step}"] = [p.grad.numpy().ravel().copy() for p in matrices]
        optimizer.step()
    found["weights"] = [p.detach().numpy().ravel().copy() for p in matrices]
    return found


def as_bf16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()


def entropy(halves: np.ndarray) -> float:
    """The share of a tensor that is left where the exponents of a block take as many bits as their entropy."""
    exponents = (halves[: len(halves) // BLOCK * BLOCK] >> 7 & 0xFF).reshape(-1, BLOCK)
    bits = 0.0
    for block in exponents:
        share = np.bincount(block)[np.unique(block)] / BLOCK
        bits -= float((share * np.log2(share)).sum())
    return (8 + bits / len(exponents)) / 16


# ---- Sizes and speeds ----------------------------------------------------------------------------------------------


OTHERS = {"zstd -1": "zstd", "lz4": "lz4"}
RESULT = re.compile(r"-> *(\d+) .*?([\d.]+) MB/s *,? *([\d.]+) MB/s")


def other(command: str, data: bytes) -> tuple[int, float, float] | None:
    """Bytes, and bytes a second each way, by the command's own benchmark at level 1, in one thread."""
    if not shutil.which(command):
        print(f"{command} is not installed: left out", file=sys.stderr)
        return None
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        run = subprocess.run(
            [command, "-b1", "-i1", file.name], capture_output=True, text=True, check=True
        )
    lines = RESULT.findall((run.stdout + run.stderr).replace("\r", "\n"))
    if not lines:
        raise SystemExit(f"{command} -b1 says nothing that is understood: {run.stdout}{run.stderr}")
    size, encode, decode = lines[-1]
    return int(size), float(encode) * 1e6, float(decode) * 1e6


def seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return {name: statistics.median(t) for name, t in times.items()}


def sizes_of(halves: np.ndarray) -> list[dict[str, Any]]:
    """One tensor of bf16, coded by everything there is."""
    raw, codec = halves.tobytes(), pith.Codec("lossless")
    tensor = torch.from_numpy(halves).view(torch.bfloat16)
    payload, back = codec.encode(tensor), torch.empty_like(tensor)
    codec.decode(payload, back)
    if not torch.equal(back.view(torch.int16), tensor.view(torch.int16)):
        raise SystemExit("lossless: values have changed")
    copy, room = np.empty_like(halves), np.empty(codec.bound(len(halves)), np.uint8)
    out, where = c.Out(room.ctypes.data, len(room), 0), context()
    span = view_of(tensor).span

    def encode() -> None:  # into a buffer that is there already
        c.check(
            c.lib.pith_encode(codec._pointer, None, span, ctypes.byref(out), ctypes.byref(where))
        )

    runs: dict[str, Callable[[], Any]] = {
        "copy": lambda: np.copyto(copy, halves),
        "encode": encode,
        "decode": lambda: codec.decode(payload, back),
    }
    times = in_turns(runs)
    copied = len(raw) / times["copy"]
    found: dict[str, tuple[int, float, float] | None] = {
        "lossless": (len(payload), len(raw) / times["encode"], len(raw) / times["decode"])
    }
    found |= {name: other(command, raw) for name, command in OTHERS.items()}
    return [
        {
            "method": name,
            "ratio": row[0] / len(raw),
            "encode": row[1] / copied,
            "decode": row[2] / copied,
        }
        for name, row in found.items()
        if row
    ]


# ---- Errors at equal bits ------------------------------------------------------------------------------------------


def error_of(spec: str, tensors: list[np.ndarray]) -> tuple[float, float]:
    """Bits for a value, and the root of Σ(x − x̂)² / Σx² over all tensors."""
    codec, lost, whole, size, count = pith.Codec(spec), 0.0, 0.0, 0, 0
    for x in tensors:
        payload, found = codec.encode(x), np.empty_like(x)
        codec.decode(payload, found)
        lost += float(((x - found).astype(np.float64) ** 2).sum())
        whole += float((x.astype(np.float64) ** 2).sum())
        size += len(payload)
        count += len(x)
    return 8 * size / count, (lost / whole) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    a = parser.parse_args()
    tensors = recorded(tuple(a.steps))
    rows: list[dict[str, Any]] = []
    print(f"{'bf16 of':24} {'method':10} {'size':>7} {'encode':>12} {'decode':>12}   entropy")
    for name, list_of in tensors.items():
        halves = as_bf16(np.concatenate(list_of))
        least = entropy(halves)
        for row in sizes_of(halves):
            rows.append({"tensors": name, **row, "entropy": least})
            print(
                f"{name:24} {row['method']:10} {row['ratio']:7.3f} {row['encode']:6.2f} × copy {row['decode']:6.2f} × copy"
                f"   {least:.3f}"
            )
    print(f"\n{'f32 of':24} {'method':16} {'bits':>7} {'error':>9}")
    for name, list_of in tensors.items():
        for spec in FOUR_BITS:
            bits, error = error_of(spec, list_of)
            rows.append({"tensors": name, "method": spec, "bits": bits, "error": error})
            print(f"{name:24} {spec:16} {bits:7.4f} {error:9.5f}")
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
