# SPDX-License-Identifier: Apache-2.0
"""What an optimizer's step takes on a GPU: torch's fused AdamW beside the step in which momentum has travelled, in turns, on one process.

    python bench/update_speed.py                      # the layers of a GPT of 124 million parameters

Both go over the same layers of the same model. "exchanged" is the step after an exchange, with the momentum in place of the gradient; "local"
is one between two exchanges (moment:4/…). Times are those of the device: medians of --rounds, each the mean of --steps.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys

import torch

import pith
from pith import _library as c
from pith.torch._carrier import Side

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402


class PithSteps:
    """The step of the C library for all layers of two dimensions, as pith.torch calls it."""

    def __init__(self, model: torch.nn.Module, take: float, keep: float) -> None:
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1"})
        self._layers = [p for p in model.parameters() if p.dim() > 1]
        self._side = Side(self._layers[0].device)
        self._comm = pith.Comm()
        self._reducer = pith.Reducer(self._comm, "none", cuda=self._side.cuda)
        self._tensors = []
        self._array = c.array(c.Update, len(self._layers))
        for at, (entry, p) in enumerate(zip(self._array, self._layers, strict=True)):
            gradient, moment = (torch.randn_like(p) * 1e-3 for _ in range(2))
            variance = moment.square()
            self._tensors += [gradient, moment, variance]
            entry.index = self._reducer.add(str(at), p.shape, p.dtype)
            self._reducer.set_spec(entry.index, "moment/onebit")
            entry.gradient, entry.moment = gradient.data_ptr(), moment.data_ptr()
            entry.variance, entry.parameter = variance.data_ptr(), p.data_ptr()
            entry.take, entry.keep, entry.fold = take, keep, 0.9
            entry.decay, entry.rate, entry.epsilon, entry.root = 1 - 1e-5, 1e-5, 1e-8, 1.0
            setattr(entry, "pass", 1.0)
        torch.cuda.synchronize()

    def step(self) -> None:
        self._reducer.update(self._array, torch.cuda.current_stream().cuda_stream)


class AdamW:
    """torch's own, over the same layers."""

    def __init__(self, model: torch.nn.Module) -> None:
        layers = [p for p in model.parameters() if p.dim() > 1]
        for p in layers:
            p.grad = torch.randn_like(p) * 1e-3
        self.step = torch.optim.AdamW(layers, lr=1e-5, fused=True).step


def milliseconds(step, count: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # the host is ahead: its own time does not count
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="in each round")
    a = parser.parse_args()
    model = gpt.GPT(50304, a.width, a.layers, a.width // 64, 512)
    model.head.weight = model.token.weight
    model = model.cuda()
    ways = {
        "torch AdamW, fused": AdamW(model),
        "pith, exchanged": PithSteps(model, take=1.0, keep=0.0),
        "pith, local": PithSteps(model, take=0.1, keep=0.9),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(a.rounds + 1):
        for name, way in ways.items():
            found = milliseconds(way.step, a.steps)
            if turn:
                times[name].append(found)
    base = statistics.median(times["torch AdamW, fused"])
    print(f"{'step':<24}{'ms':>8}{'× torch':>9}")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:<24}{middle:>8.3f}{middle / base:>9.2f}")


if __name__ == "__main__":
    main()
