# SPDX-License-Identifier: Apache-2.0
"""What models are trained on. Each task makes its data by itself, from what every machine has, or reads a folder of the user's.

A task is a class with the attributes and methods of :class:`Task`. All of its data follow from ``SEED``: every run of a task sees the same samples,
and only weights and the order of batches depend on the run's seed.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SEED = 12345  # of data; not that of a run


class Task:
    """A data set, a model, a loss, and a metric of held-out samples."""

    name = ""
    title = ""  # for the report
    metric = ""  # its name
    unit = ""
    higher = True  # whether a greater metric is better
    steps = 300
    batches_of = {"small": 16, "gpu": 64}  # samples of a rank in a step, by size
    rates = {"sgd": 0.1, "adamw": 1e-3}  # in the middle of those that are tried
    ceiling: float | None = None  # what no model can exceed, where that is known

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        self.size, self.data = size, data
        self.batch = self.batches_of[size]

    @classmethod
    def origin(cls, data: str | None) -> str:
        """Tells data sets apart whose results must not be mixed: empty for what is the same on every machine."""
        return "" if data is None else fingerprint(data)

    def model(self) -> torch.nn.Module:
        raise NotImplementedError

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        raise NotImplementedError

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        raise NotImplementedError

    def score(self, model: torch.nn.Module, part: slice) -> tuple[float, float]:
        """Of a part of the held-out samples: two sums, which are added up over all parts."""
        raise NotImplementedError

    def metric_of(self, first: float, second: float) -> float:
        """The metric from both sums: a share in %, for most."""
        return 100 * first / max(second, 1.0)

    def evaluate(self, model: torch.nn.Module) -> float:
        """The metric, on all held-out samples."""
        return self.metric_of(*self.score(model, slice(None)))

    def to(self, device: torch.device) -> None:
        """Tensors that are kept from batch to batch move to a device."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))
            elif isinstance(value, tuple) and all(isinstance(v, torch.Tensor) for v in value):
                setattr(self, name, tuple(v.to(device) for v in value))


def fingerprint(data: str) -> str:
    """Of a file, or of all files of a folder."""
    path, found = Path(data), hashlib.sha256()
    if not path.exists():
        raise ValueError(f"there is no {data}")
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                while chunk := content.read(1 << 20):
                    found.update(chunk)
    return found.hexdigest()[:12]


def generator(offset: int = 0) -> torch.Generator:
    """For data."""
    return torch.Generator().manual_seed(SEED + offset)


def drawn(
    data: tuple[torch.Tensor, ...], batch: int, source: torch.Generator
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of samples, each drawn from all of them."""
    while True:
        at = torch.randint(len(data[0]), (batch,), generator=source).to(data[0].device)
        yield tuple(part[at] for part in data)


_CLASSES = {
    "text": ("text", "Text"),
    "words": ("text", "Words"),
    "digits": ("images", "Digits"),
    "images": ("images", "Images"),
    "recommend": ("recommend", "Recommend"),
    "defects": ("defects", "Defects"),
}
TASKS = tuple(_CLASSES)

SUMMARIES = {
    "text": "a GPT on bytes of text: bits per byte",
    "words": "an LSTM on words: perplexity",
    "digits": "a CNN on scikit-learn's handwritten digits: accuracy",
    "images": "a ResNet-9 on generated images, or CIFAR-10: accuracy",
    "recommend": "a recommender on generated power-law interactions: hit rate at 10",
    "defects": "a U-Net on generated defects: intersection over union",
}


def class_of(name: str) -> type[Task]:
    """What is known of a task without making its data."""
    if name not in _CLASSES:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(TASKS)}")
    module, kind = _CLASSES[name]
    found: type[Task] = getattr(importlib.import_module(f".{module}", __name__), kind)
    return found


def task_of(name: str, size: str = "small", data: str | None = None) -> Task:
    return class_of(name)(size, data)
