"""Grids: which runs there are. A grid is a small TOML file (docs/evaluation.md); ``quick``, ``grace`` and ``full`` come with the package.

A grid becomes *cells*, one for each run. Cells of phase ``tune`` try learning rates, and those of phase ``final`` take the best of them. In a cell of
phase ``speed`` all methods of a task take turns, a few steps each, so that a machine that is slow for a while is slow for all of them; training without an
exchange is one of them. The id of a cell follows from what it is, so that a grid can go on where it was
killed, and results of several machines can be put together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .tasks import TASKS, class_of

GRIDS = Path(__file__).resolve().parent / "grids"
TUNE, FINAL, SPEED = "tune", "final", "speed"
_TURNS, _TURN_STEPS = 6, 5  # of each method in a run of phase speed
_DEFAULTS: dict[str, Any] = {
    "optimizer": ["sgd"],
    "link": ["1gbit"],
    "ranks": [2],
    "seeds": 2,
    "rates": [0.3, 1.0, 3.0],
    "steps": 1.0,
    "size": "small",
    "device": "cpu",
}
_LISTS = ("task", "spec", "optimizer", "link", "ranks", "rates")
# What the estimate starts from: milliseconds that a step computes on a core, and MB of gradients, at the small size.
_NOMINAL = {
    "text": (18, 1.1),
    "words": (10, 1.8),
    "digits": (2.2, 0.8),
    "images": (14, 0.4),
    "recommend": (1.2, 0.11),
    "defects": (12, 0.12),
}
_BYTES_OF_A_RUN = 5000


class GridError(Exception):
    """A grid cannot be read; the message says where."""


@dataclass(frozen=True)
class Way:
    """A spec with what belongs to it."""

    spec: str
    backend: str
    centre: float  # factor on the task's rates, for methods whose updates have another size
    label: str


@dataclass
class Grid:
    title: str
    cells: list[dict[str, Any]]
    imports: list[str]
    device: str
    warnings: list[str] = field(default_factory=list)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    return sorted(path.stem for path in GRIDS.glob("*.toml"))


def _parse(text: str, place: str) -> dict[str, Any]:
    try:
        import tomllib as toml  # type: ignore[import-not-found,unused-ignore]
    except ImportError:  # Python 3.10
        try:
            import tomli as toml  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ImportError:
            raise GridError(
                "grids need Python 3.11, or the package tomli on Python 3.10: pip install tomli"
            ) from None
    try:
        return dict(toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise GridError(f"{place}: {error}") from None


def read(name: str) -> dict[str, Any]:
    """A grid of the package by its name, or a file."""
    path = GRIDS / f"{name}.toml" if re.fullmatch(r"\w+", name) else Path(name)
    if not path.is_file():
        raise GridError(f"there is no grid {name}; there are {', '.join(names())}, and files")
    grid = _parse(path.read_text(encoding="utf-8"), str(path))
    grid.setdefault("title", path.stem)
    folder = path.resolve().parent
    grid["import"] = [
        str(folder / each) if each.endswith(".py") else each for each in grid.get("import", [])
    ]
    return grid


# ---- Expanding -------------------------------------------------------------------------------------------------------


def _settings(block: dict[str, Any], defaults: dict[str, Any], place: str) -> dict[str, Any]:
    found = _DEFAULTS | defaults | block
    unknown = set(found) - set(_DEFAULTS) - {"task", "spec", "centres"}
    if unknown:
        raise GridError(f"{place}: there is no setting {sorted(unknown)[0]!r}")
    for key in ("task", "spec"):
        if key not in found:
            raise GridError(f"{place} has no {key}")
    for key in _LISTS:
        if not isinstance(found[key], list):
            found[key] = [found[key]]
    for task in found["task"]:
        if task not in TASKS:
            raise GridError(f"{place}: there is no task {task!r}; there are {', '.join(TASKS)}")
    for optimizer in found["optimizer"]:
        if optimizer not in ("sgd", "adamw"):
            raise GridError(f"{place}: the optimizer {optimizer!r} is neither sgd nor adamw")
    for link in found["link"]:
        rate_of(link, place)
    if min(found["ranks"]) < 2 or found["seeds"] < 1 or found["steps"] <= 0:
        raise GridError(f"{place}: it takes 2 ranks, 1 seed and a share of the steps at least")
    return found


def rate_of(link: str, place: str = "link") -> float | None:
    """Bits a second; None where there is no limit."""
    if link == "none":
        return None
    match = re.fullmatch(r"([\d.]+)([kmg])bit", link)
    if not match:
        raise GridError(f"{place}: {link!r} is no rate, such as 1gbit or 100mbit, nor none")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def _way(entry: Any, settings: dict[str, Any], place: str) -> Way:
    given = {"spec": entry} if isinstance(entry, str) else dict(entry)
    spec = given.get("spec")
    unknown = set(given) - {"spec", "backend", "centre", "label"}
    if not isinstance(spec, str) or unknown:
        raise GridError(f"{place}: {entry!r} is no spec; it has spec, backend, centre and label")
    cuda, rival = settings["device"] == "cuda", spec.startswith("torch:")
    backend = given.get("backend", ("nccl" if cuda else "gloo") if rival else "pith")
    method = spec.rpartition("/")[2].partition(":")[0].partition(",")[0]
    centre = given.get("centre", settings.get("centres", {}).get(method, 1.0))
    usual = backend == ("gloo" if rival else "pith")
    label = given.get("label", spec if usual or cuda and rival else f"{spec} over {backend}")
    return Way(spec, backend, float(centre), label)


def _identified(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell with its id, which the tuned rate is no part of."""
    key = {name: value for name, value in cell.items() if name not in ("rate", "estimate", "data")}
    text = json.dumps(key, sort_keys=True)
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:16], **cell}


def _estimate(cell: dict[str, Any], cores: int) -> float:
    compute, megabytes = _NOMINAL[cell["task"]]
    rate = rate_of(cell["link"])
    factor = 1.0 if cell["spec"] in ("none", "torch:none") else 0.3
    sent = 2 * megabytes * (cell["ranks"] - 1) / cell["ranks"] * factor
    wire = 8e6 * sent / rate if rate else 0.0
    share = max(1.0, cell["ranks"] / cores)
    cell_ways = len(cell.get("ways", [0]))
    return 0.3 + cell_ways * cell["steps"] * (share * (1e-3 * compute * 1.2 + 1e-3) + wire)


def _cells_of(settings: dict[str, Any], ways: list[Way], cores: int) -> list[dict[str, Any]]:
    cells = []
    for name in settings["task"]:
        task = class_of(name)
        steps = max(1, round(task.steps * settings["steps"]))
        for optimizer in settings["optimizer"]:
            for ranks in settings["ranks"]:
                common = {
                    "task": name,
                    "size": settings["size"],
                    "optimizer": optimizer,
                    "ranks": ranks,
                    "device": settings["device"],
                    "batch": task.batches_of[settings["size"]],
                    "steps": steps,
                }
                rate = task.rates[optimizer]
                for link in dict.fromkeys(["none", *settings["link"]]):
                    cells.append(_speed_cell(common, ways, rate, link))
                for way in ways:
                    cells += _cells_of_way(common, way, rate, settings)
    for cell in cells:
        cell["estimate"] = _estimate(cell, cores)
    return cells


def _speed_cell(common: dict[str, Any], ways: list[Way], rate: float, link: str) -> dict[str, Any]:
    local = {"spec": "local", "backend": "pith", "label": "local"}
    found = [{"spec": way.spec, "backend": way.backend, "label": way.label} for way in ways]
    return common | {
        "spec": "in turns",
        "backend": "",
        "label": "in turns",
        "centre": 1.0,
        "multiplier": 1.0,
        "rate": 0.1 * rate,  # small, so that nothing diverges: it is about time
        "link": link,
        "seed": 1,
        "phase": SPEED,
        "steps": _TURNS * _TURN_STEPS,
        "turns": _TURNS,
        "ways": [local, *found],
    }


def _cells_of_way(
    common: dict[str, Any], way: Way, rate: float, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    start = common | {
        "spec": way.spec,
        "backend": way.backend,
        "label": way.label,
        "centre": way.centre,
    }
    cells = []
    if len(settings["rates"]) > 1:
        for multiplier in settings["rates"]:
            cells.append(
                start
                | {"link": "none", "seed": 0, "phase": TUNE, "multiplier": multiplier}
                | {"rate": rate * way.centre * multiplier}
            )
    for link in settings["link"]:
        for seed in range(1, settings["seeds"] + 1):
            cells.append(
                start
                | {"link": link, "seed": seed, "phase": FINAL, "rates": settings["rates"]}
                | {"rate": rate * way.centre * settings["rates"][0]}
            )
    return cells


def expand(grid: dict[str, Any], cores: int = 2, data: dict[str, str] | None = None) -> Grid:
    """All cells of a grid, each once."""
    blocks = grid.get("run")
    if not isinstance(blocks, list) or not blocks:
        raise GridError("a grid has a [[run]] at least")
    unknown = set(grid) - {"title", "run", "defaults", "import"}
    if unknown:
        raise GridError(f"there is no setting {sorted(unknown)[0]!r} of a grid")
    cells: dict[str, dict[str, Any]] = {}
    devices = set()
    for number, block in enumerate(blocks, 1):
        place = f"[[run]] {number}"
        settings = _settings(block, grid.get("defaults", {}), place)
        devices.add(settings["device"])
        ways = [_way(entry, settings, place) for entry in settings["spec"]]
        for cell in _cells_of(settings, ways, cores):
            cell["data"] = (data or {}).get(cell["task"])
            made = _identified(cell | {"own_data": cell["data"] is not None})
            cells.setdefault(made["id"], made)
    if len(devices) > 1:
        raise GridError("runs on CPUs and on GPUs need a grid each")
    imports = list(grid.get("import", []))
    return Grid(grid.get("title", "grid"), list(cells.values()), imports, devices.pop())


def disk_of(cells: list[dict[str, Any]]) -> int:
    """Bytes that results, logs and the report take, roughly."""
    return 200_000 + 3 * _BYTES_OF_A_RUN * len(cells)
