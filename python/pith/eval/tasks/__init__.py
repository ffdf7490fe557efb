"""What models are trained on. Each task makes its data by itself, from what every machine has, or reads a folder of the user's.

A task is a class with the attributes and methods of :class:`Task`. All of its data follow from ``SEED``: every run of a task sees the same samples,
and only weights and the order of batches depend on the run's seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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

    def model(self) -> torch.nn.Module:
        raise NotImplementedError

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        raise NotImplementedError

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        raise NotImplementedError

    def evaluate(self, model: torch.nn.Module) -> float:
        """The metric, on held-out samples."""
        raise NotImplementedError

    def to(self, device: torch.device) -> None:
        """Tensors that are kept from batch to batch move to a device."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))
            elif isinstance(value, tuple) and all(isinstance(v, torch.Tensor) for v in value):
                setattr(self, name, tuple(v.to(device) for v in value))


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
