# SPDX-License-Identifier: Apache-2.0
"""The carriers of examples/python, started as a user would. They fail by themselves if ranks end with different parameters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import needs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
SPECS = ["q:4", "ef/topk:0.05", "ef/powersgd:2"]  # all-to-all, all-gather, allreduce


def losses_of(spec: str, ranks: int, *command: str | Path) -> tuple[float, float]:
    """The first and the last loss that the example prints."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "TORCHELASTIC")
    env = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all ranks have the same parameters" in done.stdout
    found = re.search(
        rf"{re.escape(spec)} on {ranks} ranks: loss (\S+), in the end (\S+)", done.stdout
    )
    assert found, done.stdout
    return float(found[1]), float(found[2])


def open_mpi() -> list[str]:
    """The launcher of Open MPI, which mpi4py from PyPI takes first; that of MPICH cannot start its programs."""
    for name in ("mpirun.openmpi", "mpirun"):
        mpirun = shutil.which(name)
        if mpirun is not None:
            version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
            if "Open MPI" in version or "OpenRTE" in version:
                return [mpirun, "--allow-run-as-root", "--oversubscribe"]
    needs.lacks("mpi", "there is no mpirun of Open MPI")


@pytest.mark.parametrize("spec", SPECS)
def test_a_carrier_by_mpi4py(spec: str) -> None:
    mpirun = open_mpi()
    probe = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    found = subprocess.run([*mpirun, "-n", "1", *probe], capture_output=True, text=True)
    if "Open MPI" not in found.stdout:
        needs.lacks("mpi4py", f"no mpi4py that uses Open MPI: {found.stdout}{found.stderr}")
    script = EXAMPLES / "mpi4py_carrier.py"
    first, last = losses_of(spec, 3, *mpirun, "-n", "3", sys.executable, script, spec)
    assert last < first / 20


def test_a_carrier_over_a_group_of_torch() -> None:
    needs.module("torch", "the example trains with torch")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    rules = "0.weight=ef/topk:0.1;*=ef/powersgd:2"  # and exact biases: all three collectives
    script = EXAMPLES / "torch_carrier.py"
    first, last = losses_of(rules, 3, sys.executable, *torchrun, script, rules)
    assert last < first / 2
