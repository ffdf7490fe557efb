# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on handwritten digits (1,797 images of 8×8 pixels that come with scikit-learn).

python examples/pytorch/digits.py                                               # alone
torchrun --nproc-per-node 4 examples/pytorch/digits.py --spec ef/topk:0.01      # four ranks, 1% of the values
"""

from __future__ import annotations

import argparse

import common
import torch
from torch import nn
from torch.nn import functional as F


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    return x, torch.tensor(digits.target)[order]


def make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def batches(x: torch.Tensor, y: torch.Tensor, batch: int, generator: torch.Generator):
    while True:
        at = torch.randint(len(x), (batch,), generator=generator)
        yield x[at], y[at]


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_arguments(parser, steps=200, batch=16, rate=0.05)
    parser.add_argument(
        "--width",
        type=int,
        default=512,
        help="of the two large layers: the more, the more there is to send",
    )
    a = parser.parse_args()
    x, y = read_digits()
    rank, ranks = common.start(a)
    held_out = len(x) // 5
    model = common.distribute(make_model(a.width), a, ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(1000 * a.seed + rank)
    outcome = common.train(
        model,
        optimizer,
        batches(x[held_out:], y[held_out:], a.batch, generator),
        loss_of,
        a,
        "CNN on digits",
        rank,
        ranks,
    )
    with torch.no_grad():
        right = (model(x[:held_out]).argmax(1) == y[:held_out]).float().mean().item()
    outcome.quality = f", {100 * right:.1f}% of {held_out} held-out digits right"
    common.report(outcome, a, rank)
    common.end()


if __name__ == "__main__":
    main()
