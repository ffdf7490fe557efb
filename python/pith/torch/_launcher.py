# SPDX-License-Identifier: Apache-2.0
"""What mpirun and srun set in the environment, in the words that torch.distributed reads."""

from __future__ import annotations

import os

from .._errors import ArgumentError
from .._launch import launch

_TORCH_PORTS = (
    8192  # above Pith's own range of ports that are made from job ids (src/transport/launcher.c)
)


def adopt_launcher() -> None:
    """Under mpirun and srun, sets the variables that ``init_process_group`` wants and that are not set.

    The port of torch's store follows from the job, so that two jobs on a host do not collide. Where mpirun starts ranks on several hosts,
    MASTER_ADDR must be given (``mpirun -x MASTER_ADDR=…``): it does not say where rank 0 is.
    """
    if "RANK" in os.environ:
        return
    try:
        found = launch()
    except ArgumentError:
        return  # not started by a launcher: init_process_group says what it lacks
    values = {
        "RANK": found.rank,
        "WORLD_SIZE": found.ranks,
        "LOCAL_RANK": found.local_rank,
        "LOCAL_WORLD_SIZE": found.local_ranks,
        "MASTER_ADDR": found.host,
    }
    if found.port is not None and "MASTER_PORT" not in os.environ:
        values |= {"MASTER_PORT": found.port + _TORCH_PORTS, "PITH_PORT": found.port}
    for name, value in values.items():
        if value is not None:
            os.environ.setdefault(name, str(value))
