# SPDX-License-Identifier: Apache-2.0
"""How many bytes does a plan save at the same error? Gradients of real trainings, and every plan beside the best one possible.

    python bench/plan_bytes.py                     # the table of docs/planner.md
    python bench/plan_bytes.py --json FILE
    python bench/plan_bytes.py --methods           # all methods and both metrics beside each other

Trains the models of examples/pytorch and a residual network, alone, and records statistics of their gradients at some steps. For the error of each
uniform spec: bytes of all payloads of the spec itself, of the plan in its own family and of the plan in all families, as shares of the first;
beside each plan what exhaustive search finds, or a lower bound where that would take too long. Ends with 1 if a plan breaks its promise: if
it loses more than the spec, is larger, or is larger with all families than with one of them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

import pith
import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import digits  # noqa: E402
import gpt  # noqa: E402

AIMS = {"q:4": 0.87, "ef/topk:0.01": 0.5, "ef/powersgd:4": 0.7}  # of plans in the spec's own family
FAMILIES = {"q:4": "q", "ef/topk:0.01": "topk", "ef/powersgd:4": "powersgd"}
ROUNDING = 1e-9  # sums of the same numbers in another order


# ---- Models --------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.around = (
            nn.Conv2d(before, width, 1, stride, bias=False) if before != width else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(y + self.around(x))


def make_resnet() -> nn.Module:
    widths = (
        [(32, 32, 1)] * 3
        + [(32, 64, 2), (64, 64, 1), (64, 64, 1)]
        + [(64, 128, 2), (128, 128, 1), (128, 128, 1)]
    )
    blocks = [Residual(*w) for w in widths]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), *blocks, *head
    )


def text_training(width: int, layers: int):
    text = gpt.read_text(None)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    encoded = torch.tensor([symbols[c] for c in text])
    model = gpt.GPT(len(symbols), width, layers, max(1, width // 64), 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    return (
        model,
        optimizer,
        gpt.batches(encoded, 8, 64, torch.Generator().manual_seed(1)),
        gpt.loss_of,
    )


def digits_training(model: nn.Module):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return (
        model,
        optimizer,
        digits.batches(*digits.read_digits(), 16, torch.Generator().manual_seed(1)),
        digits.loss_of,
    )


TRAININGS = {
    "GPT": lambda: text_training(256, 4),
    "ResNet": lambda: digits_training(make_resnet()),
    "CNN": lambda: digits_training(digits.make_model(512)),
}


def recorded(training, every: int, samples: int, seed: int = 1) -> pith.Profile:
    """Statistics of gradients at some steps of a training."""
    torch.manual_seed(seed)
    model, optimizer, batches, loss_of = training()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "statistics.json"
        pith.torch.record(model, path, every=every, steps=samples)
        for _, batch in zip(range(every * samples), batches, strict=False):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, batch).backward()
            optimizer.step()
        return pith.Profile.load(path)


# ---- The best plan possible --------------------------------------------------------------------------------------------


class Tables:
    """Bytes and errors of layers × candidates, as means over samples."""

    def __init__(self, profile: pith.Profile) -> None:
        layers, self.candidates = profile.layers, profile.candidates
        sums = np.frombuffer(profile.values).reshape(len(layers), -1)
        free = [i for i, layer in enumerate(layers) if not layer.fixed]
        means = sums[free, 4:] / sums[free, :1]
        self.bytes, self.errors = np.split(means, 2, axis=1)
        self.names = [layers[i].name for i in free]
        self.fixed = sum(4 * int(np.prod(layer.shape)) for layer in layers if layer.fixed)

    def of(self, spec: str) -> tuple[float, float]:
        """Bytes and error of a spec on all layers."""
        place = self.candidates.index(spec)
        return self.fixed + self.bytes[:, place].sum(), self.errors[:, place].sum()

    def of_plan(self, plan: pith.Plan) -> tuple[float, float]:
        specs = {layer.name: layer.spec for layer in plan.layers}
        places = [self.candidates.index(specs[name]) for name in self.names]
        rows = range(len(places))
        return self.fixed + self.bytes[rows, places].sum(), self.errors[rows, places].sum()

    def options(self, families: str) -> list[int]:
        return [
            i
            for i, spec in enumerate(self.candidates)
            if families == "mix" or family_of(spec) == families
        ]


def family_of(spec: str) -> str:
    return spec.split("/")[-1].split(":")[0].split(",")[0]


def front(size: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Which points no other one beats in bytes and error, by error."""
    order = np.lexsort((size, error))
    least = np.minimum.accumulate(size[order])
    return order[np.concatenate(([True], size[order][1:] < least[:-1]))]


def dual(size: np.ndarray, error: np.ndarray, budget: float) -> tuple[float, float]:
    """The price of error at which Σ min (bytes + price·error) − price·budget, a lower bound on all choices, is highest; and that bound."""

    def bound(price: float) -> float:
        return (size + price * error).min(axis=1).sum() - price * budget

    low, high = 0.0, size.max() / max(error[error > 0].min(), 1e-300)
    for _ in range(300):  # the bound is concave in the price
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if bound(a) < bound(b) else (low, b)
    price = (low + high) / 2
    return price, bound(price)


def optimum(
    size: np.ndarray, error: np.ndarray, budget: float, known: float, most: int = 3_000_000
) -> tuple[float, bool]:
    """The least bytes within the budget, and True; or where more than `most` partial choices stay open, a lower bound, and False.

    Layers join one by one. Of all choices for those that have joined, those stay that no other one beats in bytes and error, and that the rest, at
    least as large as the dual says, can bring below what is known.
    """
    price, bound = dual(size, error, budget)
    least = (size + price * error).min(axis=1)
    order = np.argsort(-size.max(axis=1))
    rest = np.concatenate((np.cumsum(least[order][::-1])[::-1][1:], [0.0]))
    spare = np.concatenate((np.cumsum(error.min(axis=1)[order][::-1])[::-1][1:], [0.0]))
    bytes_, errors = np.zeros(1), np.zeros(1)
    for place, layer in enumerate(order):
        own = front(size[layer], error[layer])
        if len(bytes_) * len(own) > 10 * most:
            return bound, False
        bytes_ = (bytes_[:, None] + size[layer][own]).ravel()
        errors = (errors[:, None] + error[layer][own]).ravel()
        best = bytes_ + rest[place] - price * (budget - errors)
        open_ = (errors + spare[place] <= budget * (1 + ROUNDING)) & (
            best <= known * (1 + ROUNDING)
        )
        bytes_, errors = bytes_[open_], errors[open_]
        stay = front(bytes_, errors)
        bytes_, errors = bytes_[stay], errors[stay]
        if len(bytes_) > most:
            return bound, False
    return bytes_.min(), True


# ---- Comparing -----------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A plan beside the spec whose error is its budget."""

    model: str
    budget: str
    families: str
    uniform_bytes: float
    plan_bytes: float
    share_of_error: float  # at most 1
    best_bytes: float
    exact: bool  # whether that is the optimum; else a lower bound

    @property
    def ratio(self) -> float:
        return self.plan_bytes / self.uniform_bytes

    @property
    def promise(self) -> str:
        """What the plan breaks; nothing, as a rule."""
        if self.share_of_error > 1 + ROUNDING:
            return f"loses {self.share_of_error:.6f} of the budget"
        return f"is {self.ratio:.6f} of the uniform spec" if self.ratio > 1 + ROUNDING else ""


def compare(
    model: str, profile: pith.Profile, budget: str, families: str, search: bool = True
) -> Row:
    tables = Tables(profile)
    uniform, allowed = tables.of(budget)
    size, error = tables.of_plan(profile.plan(budget, families=families))
    best, exact = float("nan"), False
    if search:
        places = tables.options(families)
        found, exact = optimum(
            tables.bytes[:, places], tables.errors[:, places], allowed, size - tables.fixed
        )
        best = tables.fixed + found
    return Row(model, budget, families, uniform, size, error / allowed, best, exact)


def best_family(profile: pith.Profile, budget: str) -> tuple[str, float]:
    """The family whose plan within this error is smallest, and its bytes."""
    found = []
    for family in FAMILIES.values():
        try:
            found.append(
                (family, Tables(profile).of_plan(profile.plan(budget, families=family))[0])
            )
        except pith.RangeError:  # its strongest candidates lose more than that
            continue
    return min(found, key=lambda entry: entry[1])


def check(model: str, profile: pith.Profile, budget: str, own: Row, mix: Row) -> list[str]:
    """Promises that were broken."""
    broken = [
        f"{model}, {budget}, {row.families}: the plan {row.promise}"
        for row in (own, mix)
        if row.promise
    ]
    family, size = best_family(profile, budget)
    if mix.plan_bytes > size * (1 + ROUNDING):
        broken.append(
            f"{model}, {budget}: all families take {mix.plan_bytes:.0f} bytes, {family} alone {size:.0f}"
        )
    return broken


METHODS = ("lgreco", "lgreco, l2", "kmeans", "cgxkmeans", "linear", "best", "bayes", "global")


def compare_methods(model: str, profile: pith.Profile, budget: str) -> str:
    """Bytes and squared error of each method's plan in the spec's own family, as shares of the uniform spec's."""
    tables = Tables(profile)
    uniform, allowed = tables.of(budget)
    cells = []
    for name in METHODS:
        method, _, metric = name.partition(", ")
        if method == "global" and "topk" not in budget:
            cells.append("")
            continue
        plan = profile.plan(
            budget, method=method, metric=metric or "l2sq", families=f"{FAMILIES[budget]},none"
        )
        size, error = tables.of_plan(plan)
        cells.append(f"{size / uniform:.3f} ({error / allowed:.2f})")
    return f"{model:<8}{budget:<16}" + "".join(f"{cell:>14}" for cell in cells)


HEAD = f"{'model':<8}{'budget':<16}{'uniform':>9}  {'families':<10}{'plan':>9}{'ratio':>7}{'aim':>6}{'error':>8}  {'best possible':<24}{'plan/best':>9}"


def show(row: Row) -> str:
    aim = f"{AIMS[row.budget]:.2f}" if row.families != "mix" else ""
    best = f"{row.best_bytes:.0f} ({'optimum' if row.exact else 'bound'})"
    return (
        f"{row.model:<8}{row.budget:<16}{row.uniform_bytes:>9.0f}  {row.families:<10}{row.plan_bytes:>9.0f}{row.ratio:>7.3f}{aim:>6}"
        f"{row.share_of_error:>8.4f}  {best:<24}{row.plan_bytes / row.best_bytes:>9.4f}"
    )


def conclude(rows: list[Row]) -> list[str]:
    """Where an aim is missed: what exhaustive search could do."""
    said = []
    for row in rows:
        if row.families != "mix" and row.ratio > AIMS[row.budget]:
            word = "the optimum is" if row.exact else "no plan is below"
            said.append(
                f"{row.model}, {row.budget}: {row.ratio:.3f} misses {AIMS[row.budget]}; {word} {row.best_bytes / row.uniform_bytes:.3f}"
            )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(TRAININGS), action="append")
    parser.add_argument(
        "--every", type=int, default=20, help="steps between two samples (default: %(default)s)"
    )
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--json")
    parser.add_argument("--methods", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.methods:
        print("# bytes, and in brackets squared errors, as shares of those of the uniform spec")
        print(f"{'model':<8}{'budget':<16}" + "".join(f"{name:>14}" for name in METHODS))
        for name in a.model or TRAININGS:
            profile = recorded(TRAININGS[name], a.every, a.samples)
            for budget in FAMILIES:
                print(compare_methods(name, profile, budget), flush=True)
        return
    print(
        f"# bytes of all payloads at the error of the uniform spec; gradients of {a.samples} steps, {a.every} apart"
    )
    print(HEAD)
    rows: list[Row] = []
    broken: list[str] = []
    for name in a.model or TRAININGS:
        profile = recorded(TRAININGS[name], a.every, a.samples)
        for budget, family in FAMILIES.items():
            own, mix = (compare(name, profile, budget, families) for families in (family, "mix"))
            rows += [own, mix]
            broken += check(name, profile, budget, own, mix)
            print(show(own), show(mix), sep="\n", flush=True)
    print("", *conclude(rows), *broken, sep="\n")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
