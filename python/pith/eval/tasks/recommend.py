# SPDX-License-Identifier: Apache-2.0
"""A recommender in the manner of neural collaborative filtering, on interactions whose law is known.

Users and items have planted factors; how often a user takes an item grows with the item's popularity, a power law, and with how well the factors fit.
One item of each user is held out. The ceiling of the hit rate is that of ranking by the planted law itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import Task, generator

_NEGATIVES = 4
_FACTORS = 6


class NeuMF(nn.Module):
    """A product of factors beside a small network, each with embeddings of its own."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 2 * width), nn.Embedding(items, 2 * width)
        self.hidden = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU()
        )
        self.out = nn.Linear(2 * width, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        (u1, u2), (i1, i2) = self.user(user).chunk(2, -1), self.item(item).chunk(2, -1)
        both = torch.cat((u1 * i1, self.hidden(torch.cat((u2, i2), -1))), -1)
        return self.out(both).squeeze(-1)


class Recommend(Task):
    name, title, metric, unit, higher = "recommend", "Recommender", "hit rate at 10", "%", True
    steps, batches_of = 400, {"small": 128, "gpu": 4096}
    rates = {"sgd": 15.0, "adamw": 2e-2}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        self.users, self.items, each, self.width = {
            "small": (500, 300, 24, 16),
            "gpu": (20000, 5000, 60, 64),
        }[size]
        source = generator(5)
        self.law = self._law(source)
        drawn = torch.multinomial(self.law, each + 1, generator=source)  # without replacement
        self.held_out, self.taken = drawn[:, 0].contiguous(), drawn[:, 1:].contiguous()
        hits, users = self._hits(self.law.log(), torch.arange(self.users))
        self.ceiling = self.metric_of(hits, users)

    def _law(self, source: torch.Generator) -> torch.Tensor:
        popularity = 1 / (1 + torch.arange(self.items)) ** 0.6
        users = torch.randn(self.users, _FACTORS, generator=source)
        items = torch.randn(self.items, _FACTORS, generator=source)
        law = popularity * torch.exp(1.2 * users @ items.T)
        return law / law.sum(1, keepdim=True)

    def _hits(self, scores: torch.Tensor, users: torch.Tensor) -> tuple[float, float]:
        """Users whose held-out item is among the first ten of those that they have not taken, of how many."""
        scores = scores.scatter(1, self.taken[users], float("-inf"))
        own = scores.gather(1, self.held_out[users, None])
        return int(((~(scores <= own)).sum(1) < 10).sum()), len(users)  # NaN is no hit

    def model(self) -> nn.Module:
        return NeuMF(self.users, self.items, self.width)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        device, each = self.taken.device, self.taken.shape[1]
        while True:
            user = torch.randint(self.users, (self.batch,), generator=generator)
            which = torch.randint(each, (self.batch,), generator=generator)
            other = torch.randint(self.items, (self.batch, _NEGATIVES), generator=generator)
            user = user.to(device)
            positive = self.taken[user, which.to(device)]
            items = torch.cat((positive[:, None], other.to(device)), 1)
            yield user[:, None].expand(-1, 1 + _NEGATIVES), items

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        users, items = batch
        wanted = torch.zeros_like(items, dtype=torch.float32)
        wanted[:, 0] = 1
        return F.binary_cross_entropy_with_logits(model(users, items), wanted)

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        device = self.taken.device
        items, hits, count = torch.arange(self.items, device=device), 0.0, 0.0
        for users in torch.arange(self.users, device=device)[part].split(250):
            scores = model(users[:, None].expand(-1, self.items), items.expand(len(users), -1))
            found = self._hits(scores, users)
            hits, count = hits + found[0], count + found[1]
        return hits, count
