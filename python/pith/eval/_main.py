# SPDX-License-Identifier: Apache-2.0
"""The command line of ``pith eval``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def run_grid(
    grid: str | dict[str, Any],
    out: Path,
    *,
    seconds: float | None = None,
    jobs: int | None = None,
    untimed: bool = False,
    lab: bool = True,
    data: dict[str, str] | None = None,
    device: str | None = None,
    size: str | None = None,
    imports: list[str] | None = None,
    quiet: bool = False,
) -> Path:
    """Runs what is not done yet, and writes the report."""
    from .drive import Driver
    from .grid import expand, read, without_links
    from .report import write_report

    given = dict(read(grid) if isinstance(grid, str) else grid)
    given["import"] = [*given.get("import", []), *(imports or [])]
    if device or size:
        more = {k: v for k, v in (("device", device), ("size", size)) if v}
        given["defaults"] = given.get("defaults", {}) | more
    expanded = expand(given, data)
    if not lab:
        expanded = without_links(expanded)
    driver = Driver(expanded, out, seconds, jobs, untimed)
    if not driver.run():
        print("pith eval: runs are left; the same command goes on", file=sys.stderr)
    page = write_report([driver.path], out, title=expanded.title)
    if not quiet:
        print(page)
    return page


def _run(options: argparse.Namespace) -> None:
    data = {}
    for entry in options.data:
        task, _, folder = entry.partition("=")
        if not folder:
            raise ValueError(f"--data {entry}: it takes TASK=PATH")
        data[task] = folder
    out = Path(options.out or f"eval-{Path(options.grid).stem}")
    run_grid(
        options.grid,
        out,
        seconds=options.seconds,
        jobs=options.jobs,
        untimed=options.untimed,
        lab=not options.no_lab,
        data=data,
        device=options.device,
        size=options.size,
        imports=options.modules,
    )


def _report(options: argparse.Namespace) -> None:
    from .report import write_report

    first = Path(options.results[0])
    out = Path(options.out) if options.out else (first if first.is_dir() else first.parent)
    print(write_report([Path(path) for path in options.results], out, title=options.title))


def _compare(options: argparse.Namespace) -> None:
    from .compare import compare

    print(compare(Path(options.a), Path(options.b)), end="")


def _merge(options: argparse.Namespace) -> None:
    from .results import read_all, write_all

    write_all(read_all(options.results), Path(options.out))


def _list(_: argparse.Namespace) -> None:
    from .drive import spoken, usual_jobs
    from .grid import expand, names, read, seconds_of
    from .tasks import SUMMARIES

    cores = len(os.sched_getaffinity(0))
    print("grids")
    for name in names():
        cells = expand(read(name)).cells
        jobs = usual_jobs(max(cell["ranks"] for cell in cells))
        seconds = seconds_of(cells, cores, jobs)
        print(f"  {name:10} {len(cells)} runs, about {spoken(seconds)} on this machine")
    print("tasks")
    for name, summary in SUMMARIES.items():
        print(f"  {name:10} {summary}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "pith eval",
        description="Trains models with many methods under the same rules, and reports quality, time and bytes.",
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)

    run = parts.add_parser("run", help="run a grid or continue it, and write its report")
    run.add_argument("grid", metavar="GRID", help="quick, grace, full, or a TOML file")
    run.add_argument("-o", "--out", metavar="FOLDER", help="results and report (eval-GRID)")
    run.add_argument("--seconds", type=float, help="stop after so long; the same command goes on")
    run.add_argument(
        "-j", "--jobs", type=int, help="runs at a time whose time does not matter (the cores); timed ones: as have a core for each rank"
    )  # fmt: skip
    run.add_argument(
        "--untimed", action="store_true", help="only runs whose time does not matter, as on a machine that does other things too"
    )  # fmt: skip
    run.add_argument("--no-lab", action="store_true", help="no links of a given rate")
    run.add_argument(
        "--data", action="append", default=[], metavar="TASK=PATH", help="real data for a task"
    )
    run.add_argument("--device", choices=("cpu", "cuda"), help="where models are trained")
    run.add_argument("--size", choices=("small", "gpu"), help="of the models")
    run.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE",
        help="a module, or a file with .py, with methods in Python",
    )  # fmt: skip
    run.set_defaults(call=_run)

    report = parts.add_parser("report", help="write the report of one or several results")
    report.add_argument("results", nargs="+", metavar="RESULTS", help="a folder or a file")
    report.add_argument("-o", "--out", metavar="FOLDER", help="where to (the first RESULTS)")
    report.add_argument("--title", default="Evaluation")
    report.set_defaults(call=_report)

    compare = parts.add_parser("compare", help="compare two results")
    compare.add_argument("a", metavar="A")
    compare.add_argument("b", metavar="B")
    compare.set_defaults(call=_compare)

    merge = parts.add_parser("merge", help="join the results of several machines in one file")
    merge.add_argument("results", nargs="+", metavar="RESULTS")
    merge.add_argument("-o", "--out", metavar="FILE", required=True)
    merge.set_defaults(call=_merge)

    listing = parts.add_parser("list", help="list grids and tasks")
    listing.set_defaults(call=_list)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; gives its exit code."""
    options = _parser().parse_args(arguments)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("pith: eval needs torch, which is not installed: pip install 'pith[eval]'")
        return 1
    from .grid import GridError
    from .results import ResultsError

    try:
        options.call(options)
    except (GridError, ResultsError, ValueError, OSError) as error:
        print(f"pith: eval: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pith: eval: stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0
