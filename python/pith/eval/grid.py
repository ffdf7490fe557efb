# SPDX-License-Identifier: Apache-2.0
"""Grids: which runs there are. A grid is a small TOML file (docs/evaluation.md); ``quick``, ``grace`` and ``full`` come with the package.

A grid becomes *cells*, one for each run. Cells of phase ``tune`` try learning rates, and those of phase ``final`` take the best of them. In a cell of
phase ``speed`` all methods of a task take turns, a few steps each, so that a machine that is slow for a while is slow for all of them; training without an
exchange is one of them. What a run learns does not depend on the link, so that final runs have the link ``any``, which is none: their time follows from
the turns. Specs that adapt to the link, or change during a run, are trained behind it and timed there. The id of a cell follows from what it is, so that a
grid can go on where it was killed, and results of several machines can be put together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tasks import TASKS, class_of

GRIDS = Path(__file__).resolve().parent / "grids"
TUNE, FINAL, SPEED = "tune", "final", "speed"
ANY = "any"  # the link of a run that is not timed
_ADAPTIVE = ("auto", "lgreco", "kmeans", "accordion", "bayes", "threshold_plan", "moment")
_TUNING_LOOKS = 4  # the last one counts; the others see early that a run diverges
_DEFAULTS: dict[str, Any] = {
    "optimizer": ["sgd"],
    "link": ["1gbit"],
    "ranks": [2],
    "seeds": 2,
    "rates": [0.3, 1.0, 3.0],
    "steps": 1.0,
    "looks": 20,  # at held-out samples, in a final run
    "turns": 6,  # of each method in a cell of phase speed
    "turn_steps": 5,
    "size": "small",
    "device": "cpu",
}
_LISTS = ("task", "spec", "optimizer", "link", "ranks", "rates")
# What the estimate starts from: milliseconds that a step and a look at all held-out samples compute on a core, and MB of gradients, at the small size.
_NOMINAL = {
    "text": (4, 20, 0.5),
    "words": (4, 10, 1.1),
    "digits": (1.5, 40, 0.8),
    "images": (10, 190, 0.4),
    "recommend": (0.7, 20, 0.11),
    "defects": (8, 60, 0.12),
}
_STEP_OVERHEAD = 3.0  # milliseconds of DDP, the exchange and the optimizer
_BYTES_OF_A_RUN = 5000


class GridError(Exception):
    """A grid cannot be read; the message says where."""


@dataclass(frozen=True)
class Way:
    """A spec with what belongs to it."""

    spec: str
    backend: str
    centre: (
        float | str
    )  # factor on the task's rates, for methods whose updates have another size; or as in "0.1 of adamw"
    label: str
    timed: bool  # trained behind the link


@dataclass
class Grid:
    title: str
    cells: list[dict[str, Any]]
    imports: list[str]
    device: str


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
    least = {"seeds": 1, "looks": 1, "turns": 1, "turn_steps": 2}
    for key, value in least.items():
        if not isinstance(found[key], int) or found[key] < value:
            raise GridError(f"{place}: {key} is {found[key]!r}, and {value} at least")
    if min(found["ranks"]) < 2 or found["steps"] <= 0:
        raise GridError(f"{place}: it takes 2 ranks and a share of the steps at least")
    return found


def rate_of(link: str, place: str = "link") -> float | None:
    """Bits a second; None where there is no limit."""
    if link == "none":
        return None
    match = re.fullmatch(r"([\d.]+)([kmg])bit", link)
    if not match:
        raise GridError(f"{place}: {link!r} is not a rate, such as 1gbit or 100mbit, nor none")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def _way(entry: Any, settings: dict[str, Any], place: str) -> Way:
    given = {"spec": entry} if isinstance(entry, str) else dict(entry)
    spec = given.get("spec")
    unknown = set(given) - {"spec", "backend", "centre", "label", "timed"}
    if not isinstance(spec, str) or unknown:
        raise GridError(
            f"{place}: {entry!r} is no spec; it has spec, backend, centre, label and timed"
        )
    usual = usual_backend(spec, settings["device"])
    backend = given.get("backend", usual)
    method = spec.rpartition("/")[2].partition(":")[0].partition(",")[0]
    centre = given.get("centre", settings.get("centres", {}).get(method, 1.0))
    label = given.get("label", spec if backend == usual else f"{spec} over {backend}")
    _centre_of(centre, 1.0, 1.0, place)  # so that a mistake is found here
    return Way(spec, backend, centre, label, bool(given.get("timed", is_adaptive(spec))))


def _centre_of(centre: Any, rate: float, of_adamw: float, place: str = "centre") -> float:
    """The rate in the middle, for a task with these rates."""
    if isinstance(centre, str) and (match := re.fullmatch(r"([\d.]+) of adamw", centre)):
        return float(match[1]) * of_adamw
    if isinstance(centre, str):
        raise GridError(f"{place}: the centre {centre!r} is neither a number nor as '0.1 of adamw'")
    return float(centre) * rate


def usual_backend(spec: str, device: str) -> str:
    """Where a way runs if the grid does not say: NCCL on GPUs; on CPUs PyTorch's own over gloo."""
    if device == "cuda":
        return "nccl"
    return "gloo" if spec.startswith("torch:") else "pith"


def is_adaptive(spec: str) -> bool:
    """Whether what a spec sends depends on the link, or changes during a run."""
    return re.split("[:,/]", spec)[0] in _ADAPTIVE


def _identified(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell with its id, which the tuned rate is no part of."""
    key = {name: value for name, value in cell.items() if name not in ("rate", "estimate", "data")}
    text = json.dumps(key, sort_keys=True)
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:16], **cell}


def _estimate(cell: dict[str, Any]) -> float:
    """Seconds with a core for each rank."""
    compute, look, megabytes = _NOMINAL[cell["task"]]
    rate = rate_of(cell["link"]) if cell["link"] != ANY else None
    factor = 1.0 if cell["spec"] in ("none", "torch:none") else 0.3
    sent = 2 * megabytes * (cell["ranks"] - 1) / cell["ranks"] * factor
    wire = 8e6 * sent / rate if rate else 0.0
    looks = 1e-3 * look * cell.get("looks", 0) / cell["ranks"]
    steps = len(cell.get("ways", [0])) * cell["steps"]
    return 0.1 + looks + steps * (1e-3 * (compute + _STEP_OVERHEAD) + wire)


def is_timed(cell: dict[str, Any]) -> bool:
    """Whether it has to be alone on its cores."""
    return bool(cell["phase"] == SPEED or (cell["phase"] == FINAL and cell["link"] != ANY))


def jobs_of(cell: dict[str, Any], cores: int, jobs: int) -> int:
    """How many such cells run at a time: as many as ``jobs``, but timed ones where each rank has a core of its own, and one on GPUs."""
    if not is_timed(cell):
        return jobs
    return 1 if cell["device"] == "cuda" else max(1, min(jobs, cores // cell["ranks"]))


def seconds_of(cells: list[dict[str, Any]], cores: int, jobs: int) -> float:
    """What cells take together, on this machine."""
    return sum(
        cell["estimate"] * cell["ranks"] / min(cores, jobs_of(cell, cores, jobs) * cell["ranks"])
        for cell in cells
    )


def _cells_of(settings: dict[str, Any], ways: list[Way]) -> list[dict[str, Any]]:
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
                    cells.append(_speed_cell(common, ways, rate, link, settings))
                for way in ways:
                    centre = _centre_of(way.centre, rate, task.rates["adamw"])
                    cells += _cells_of_way(common, way, centre, settings)
    for cell in cells:
        cell["estimate"] = _estimate(cell)
    return cells


def _speed_cell(
    common: dict[str, Any], ways: list[Way], rate: float, link: str, settings: dict[str, Any]
) -> dict[str, Any]:
    local = {
        "spec": "local",
        "backend": usual_backend("local", settings["device"]),
        "label": "local",
    }
    found = [{"spec": way.spec, "backend": way.backend, "label": way.label} for way in ways]
    return common | {
        "spec": "in turns",
        "backend": "",
        "label": "in turns",
        "multiplier": 1.0,
        "rate": 0.1 * rate,  # small, so that nothing diverges: it is about time
        "link": link,
        "shown": link in settings["link"],  # else for break-even alone
        "seed": 1,
        "phase": SPEED,
        "steps": settings["turns"] * settings["turn_steps"],
        "turns": settings["turns"],
        "ways": [local, *found],
    }


def _cells_of_way(
    common: dict[str, Any], way: Way, centre: float, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    start = common | {
        "spec": way.spec,
        "backend": way.backend,
        "label": way.label,
    }
    cells = []
    if len(settings["rates"]) > 1:
        for multiplier in settings["rates"]:
            cells.append(
                start
                | {"link": ANY, "seed": 0, "phase": TUNE, "multiplier": multiplier}
                | {"rate": centre * multiplier, "looks": _TUNING_LOOKS}
            )
    for link in settings["link"] if way.timed else [ANY]:
        for seed in range(1, settings["seeds"] + 1):
            cells.append(
                start
                | {"link": link, "seed": seed, "phase": FINAL, "rates": settings["rates"]}
                | {"rate": centre * settings["rates"][0], "looks": settings["looks"]}
            )
    return cells


def expand(grid: dict[str, Any], data: dict[str, str] | None = None) -> Grid:
    """All cells of a grid, each once."""
    blocks = grid.get("run")
    if not isinstance(blocks, list) or not blocks:
        raise GridError("a grid has a [[run]] at least")
    unknown = set(grid) - {"title", "run", "defaults", "import"}
    if unknown:
        raise GridError(f"there is no setting {sorted(unknown)[0]!r} of a grid")
    cells: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    devices = set()
    for number, block in enumerate(blocks, 1):
        place = f"[[run]] {number}"
        settings = _settings(block, grid.get("defaults", {}), place)
        devices.add(settings["device"])
        ways = [_way(entry, settings, place) for entry in settings["spec"]]
        for cell in _cells_of(settings, ways):
            folder = (data or {}).get(cell["task"])
            if cell["task"] not in origins:
                origins[cell["task"]] = class_of(cell["task"]).origin(folder)
            made = _identified(cell | {"data": folder, "origin": origins[cell["task"]]})
            cells.setdefault(made["id"], made)
    if len(devices) > 1:
        raise GridError("runs on CPUs and on GPUs need a grid each")
    imports = list(grid.get("import", []))
    return Grid(grid.get("title", "grid"), list(cells.values()), imports, devices.pop())


def without_links(grid: Grid) -> Grid:
    """The same runs with no link between ranks, for machines that cannot have a lab."""
    cells: dict[str, dict[str, Any]] = {}
    for cell in grid.cells:
        plain = {k: v for k, v in cell.items() if k != "id"}
        if is_timed(cell):
            plain["link"] = "none"
        if cell["phase"] == SPEED:
            plain["shown"] = True
        made = _identified(plain)
        cells.setdefault(made["id"], made)
    return Grid(grid.title, list(cells.values()), grid.imports, grid.device)


def disk_of(cells: list[dict[str, Any]]) -> int:
    """Bytes that results, logs and the report take, roughly."""
    return 200_000 + 3 * _BYTES_OF_A_RUN * len(cells)
