# SPDX-License-Identifier: Apache-2.0
"""From runs to what the report says: the rate of each method, means over seeds, targets, Pareto lines, break-even bandwidths.

The rules are fixed before anything is run (docs/evaluation.md):

- The rate of a method is the one of its tuning runs that ended best, or the lowest within 1% of it. Every method has as many.
- The target of a task is what runs of ``bf16`` (else of no compression) reached on average, less 2% of what they gained since their first look.
- A run that diverged or failed has no quality. It is shown, and counts as never having reached the target.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from .grid import ANY, FINAL, SPEED, TUNE, is_adaptive
from .results import ResultsError

_MARGIN = 0.02
_EQUAL = 0.01
HIGHER = {"text": False, "words": False}  # the others: more is better
BASELINES = ("bf16", "none", "torch:bf16", "torch:none")
UNCOMPRESSED = ("none", "torch:none")


def is_higher(task: str) -> bool:
    return HIGHER.get(task, True)


# ---- Rates -----------------------------------------------------------------------------------------------------------

_SAME = (
    "task",
    "size",
    "origin",
    "optimizer",
    "ranks",
    "device",
    "spec",
    "backend",
    "label",
    "steps",
)


def method_of(cell: dict[str, Any]) -> str:
    """What a tuning run and the final runs for which it tunes have in common."""
    return repr([cell[key] for key in _SAME])


def _is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[key] == b[key] for key in _SAME)


def chosen_rate(cell: dict[str, Any], runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Rate and multiplier for a final run: the best of the tuning runs; of those within 1% of it, the lowest."""
    base = cell["rate"] / cell["rates"][0]
    if len(cell["rates"]) == 1:
        return base * cell["rates"][0], cell["rates"][0]
    tuned = [
        (run["result"].get("metric"), run["cell"]["multiplier"], run["cell"]["rate"])
        for run in runs
        if run["cell"]["phase"] == TUNE and _is_same(run["cell"], cell)
    ]
    good = [entry for entry in tuned if entry[0] is not None and math.isfinite(entry[0])]
    if not good:  # all have diverged: so will this, and it shows
        return base * min(cell["rates"]), min(cell["rates"])
    best = (max if is_higher(cell["task"]) else min)(entry[0] for entry in good)
    equal = [entry for entry in good if abs(entry[0] - best) <= _EQUAL * abs(best)]
    _, multiplier, rate = min(equal, key=lambda entry: entry[1])
    return rate, multiplier


# ---- Entries: one method in one setting, over its seeds --------------------------------------------------------------


@dataclass
class Entry:
    """What a method did in a setting: means over seeds, and their spread."""

    task: str
    optimizer: str
    link: str
    ranks: int
    label: str
    spec: str
    backend: str
    runs: list[dict[str, Any]]
    tuned: list[dict[str, Any]]
    batch: int  # samples of all ranks in a step
    speed: dict[str, Any]  # in turns with the others, at this link
    free: dict[str, Any]  # the same where the link has no limit
    local: dict[str, Any]  # the same without an exchange
    target: float | None = None
    reached: list[int] = field(default_factory=list)  # steps to the target, of runs that reached it
    reached_after: list[float] = field(default_factory=list)  # seconds

    @property
    def is_timed(self) -> bool:
        """Whether its runs were behind the link themselves; else their time is that of as many steps in the turns."""
        return all(run["cell"]["link"] != ANY for run in self.runs)

    def seconds(self, point: list[Any]) -> float | None:
        """Of training, at a point of a curve."""
        if self.is_timed:
            return float(point[1])
        return None if self.step is None else float(point[0] * self.step)

    @property
    def good(self) -> list[dict[str, Any]]:
        return [r["result"] for r in self.runs if r["result"]["status"] == "ok"]

    def values(self, key: str) -> list[float]:
        return [v for r in self.good if (v := r.get(key)) is not None]

    def mean(self, key: str) -> float | None:
        values = self.values(key)
        return statistics.fmean(values) if values else None

    def spread(self, key: str) -> float:
        """Half of the range over seeds."""
        values = self.values(key)
        return (max(values) - min(values)) / 2 if len(values) > 1 else 0.0

    @property
    def status(self) -> str:
        """What became of the runs, where not all is well."""
        bad = [r["result"] for r in self.runs if r["result"]["status"] != "ok"]
        if not bad:
            return "ok"
        kinds = sorted({r["status"] for r in bad})
        return f"{' and '.join(kinds)}: {len(bad)} of {len(self.runs)}"

    @property
    def rate(self) -> float:
        return float(self.runs[0]["cell"]["rate"])

    @property
    def is_edge(self) -> bool:
        """Whether the best rate was the least or the greatest that was tried."""
        rates = self.runs[0]["cell"].get("rates", [1.0])
        return len(rates) > 2 and self.runs[0]["cell"].get("multiplier") in (min(rates), max(rates))

    @property
    def step(self) -> float | None:
        """Seconds of a step: in turns with all others. What adapts has had no time to in there, and counts by the end of its runs."""
        if self.is_adaptive:
            return self.mean("late_step") if self.is_timed else None
        step = self.speed.get("step")
        return float(step) if step else None

    @property
    def free_step(self) -> float | None:
        """The same where the link has no limit."""
        return None if self.is_adaptive else self.free.get("step")

    @property
    def compute(self) -> float | None:
        """The same without an exchange."""
        return self.local.get("step")

    @property
    def is_adaptive(self) -> bool:
        return is_adaptive(self.spec)

    @property
    def throughput(self) -> float | None:
        return self.batch / self.step if self.step else None

    @property
    def throughput_error(self) -> float:
        """Half of the range of the middle half of all steps."""
        low, high = self.speed.get("low"), self.speed.get("high")
        if self.is_adaptive or not low or not high:
            return 0.0
        return self.batch * (1 / low - 1 / high) / 2

    @property
    def bytes(self) -> float | None:
        """That a rank sends in a step: counted by the link, where it has one of its own, else by Pith."""
        in_runs = self.mean("link_bytes") if self.is_timed else None
        in_turns = None if self.is_adaptive else self.speed.get("link_bytes")
        sources = (in_runs, in_turns, self.mean("wire_bytes"))
        return next((size for size in sources if size is not None), None)

    @property
    def split(self) -> dict[str, float] | None:
        """Seconds of a step: computing, encoding, decoding, and what is left."""
        step = self.step
        if step is None or self.compute is None:
            return None
        compute = min(self.compute, step)
        left = step - compute
        known = bool(self.speed.get("coded_known")) and not self.is_adaptive
        encode = min(self.speed.get("encode") or 0.0, left) if known else 0.0
        decode = min(self.speed.get("decode") or 0.0, left - encode) if known else 0.0
        return {
            "compute": compute,
            "encode": encode,
            "decode": decode,
            "wire" if known else "exchange": left - encode - decode,
        }

    @property
    def time_to_target(self) -> float | None:
        times = self.reached_after
        return statistics.fmean(times) if times and len(times) == len(self.runs) else None


@dataclass
class Panel:
    """All methods of a task in one setting: what a figure shows."""

    task: str
    optimizer: str
    link: str
    ranks: int
    entries: list[Entry]
    target: float | None = None
    target_from: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.task, self.optimizer, self.link, self.ranks

    @property
    def title(self) -> str:
        where = "no limit of the link" if self.link in ("none", ANY) else spoken_rate(self.link)
        return f"{self.task}, {self.optimizer}, {self.ranks} ranks, {where}"

    def find(self, *names: str) -> Entry | None:
        """The first of these labels that has an entry."""
        by_label = {entry.label: entry for entry in self.entries}
        return next((by_label[name] for name in names if name in by_label), None)


def spoken_rate(link: str) -> str:
    for short, unit in (("gbit", "Gbit/s"), ("mbit", "Mbit/s"), ("kbit", "kbit/s")):
        if link.endswith(short):
            return f"{link.removesuffix(short)} {unit}"
    return "no limit"


_Setting = tuple[str, str, int]


def _setting(cell: dict[str, Any]) -> _Setting:
    return cell["task"], cell["optimizer"], cell["ranks"]


def panels_of(runs: list[dict[str, Any]]) -> list[Panel]:
    """Settings in the order in which they come in the results; methods likewise, those without a run left out."""
    origins: dict[str, str] = {}
    links: dict[_Setting, list[str]] = {}
    final: dict[_Setting, list[dict[str, Any]]] = {}
    for run in runs:
        cell = run["cell"]
        if origins.setdefault(cell["task"], cell["origin"]) != cell["origin"]:
            raise ResultsError(f"these are results of different data for the task {cell['task']}")
        if cell["phase"] == FINAL:
            final.setdefault(_setting(cell), []).append(run)
        found = links.setdefault(_setting(cell), [])
        is_shown = cell.get("shown") if cell["phase"] == SPEED else cell["phase"] == FINAL
        if is_shown and cell["link"] not in (ANY, *found):
            found.append(cell["link"])
    panels = []
    for (task, optimizer, ranks), of_setting in final.items():
        for link in links[task, optimizer, ranks] or [ANY]:
            methods: dict[str, list[dict[str, Any]]] = {}
            for run in of_setting:
                if run["cell"]["link"] in (link, ANY):
                    methods.setdefault(run["cell"]["label"], []).append(run)
            entries = [_entry(found, runs, link) for found in methods.values()]
            panel = Panel(task, optimizer, link, ranks, entries)
            _set_target(panel)
            panels.append(panel)
    order = list(dict.fromkeys(run["cell"]["task"] for run in runs))
    return sorted(panels, key=lambda panel: (order.index(panel.task), panel.optimizer != "sgd"))


def _entry(found: list[dict[str, Any]], runs: list[dict[str, Any]], link: str) -> Entry:
    found = sorted(found, key=lambda run: run["cell"]["seed"])
    cell = found[0]["cell"]
    tuned = [r for r in runs if r["cell"]["phase"] == TUNE and _is_same(r["cell"], cell)]
    same = [
        r
        for r in runs
        if r["cell"]["phase"] == SPEED
        and r["result"]["status"] == "ok"
        and all(r["cell"][k] == cell[k] for k in ("task", "size", "optimizer", "ranks", "device"))
        and cell["label"] in r["result"]["ways"]
    ]

    def at(place: str, label: str) -> dict[str, Any]:
        of_link = [r["result"]["ways"] for r in same if r["cell"]["link"] == place]
        return of_link[0].get(label, {}) if of_link else {}

    return Entry(
        cell["task"],
        cell["optimizer"],
        link,
        cell["ranks"],
        cell["label"],
        cell["spec"],
        cell["backend"],
        found,
        sorted(tuned, key=lambda run: run["cell"]["multiplier"]),
        cell["batch"] * cell["ranks"],
        at(link, cell["label"]),
        at("none", cell["label"]),
        at(link, "local") or at("none", "local"),
    )


# ---- Targets ---------------------------------------------------------------------------------------------------------


def _set_target(panel: Panel) -> None:
    base = panel.find(*BASELINES)
    if base is None or not base.good:
        return
    end = base.mean("metric")
    starts = [
        r["curve"][0][3] for r in base.good if r.get("curve") and r["curve"][0][3] is not None
    ]
    if end is None or not starts:
        return
    panel.target = end + _MARGIN * (statistics.fmean(starts) - end)
    panel.target_from = base.label
    better = is_higher(panel.task)
    for entry in panel.entries:
        entry.target = panel.target
        for run in entry.good:
            first = next(
                (
                    point
                    for point in run["curve"]
                    if point[3] is not None
                    and (point[3] >= panel.target if better else point[3] <= panel.target)
                ),
                None,
            )
            if first is not None:
                entry.reached.append(first[0])
                seconds = entry.seconds(first)
                if seconds is not None:
                    entry.reached_after.append(seconds)


# ---- What pays -------------------------------------------------------------------------------------------------------


def pareto(entries: list[Entry]) -> list[Entry]:
    """Those that no other one beats in both throughput and quality, from the slowest to the fastest."""
    known = [e for e in entries if e.throughput is not None and e.mean("metric") is not None]
    if not known:
        return []
    sign = 1 if is_higher(known[0].task) else -1
    best: list[Entry] = []
    for entry in sorted(
        known, key=lambda e: (-(e.throughput or 0), -sign * (e.mean("metric") or 0))
    ):
        if not best or sign * (entry.mean("metric") or 0) > sign * (best[-1].mean("metric") or 0):
            best.append(entry)
    return best[::-1]


def break_even(entry: Entry, base: Entry) -> float | None:
    """Bits a second below which a method's step is shorter than that of ``base``.

    By what both send and by the time that the method takes longer where the link has no limit. Infinite: it takes no longer even there. None: it
    sends no less, or it was not measured.
    """
    mine, theirs = entry.bytes, base.bytes
    if mine is None or theirs is None or mine >= theirs:
        return None
    if entry.free_step is None or base.free_step is None:
        return None
    longer = entry.free_step - base.free_step
    return math.inf if longer <= 0 else 8 * (theirs - mine) / longer
