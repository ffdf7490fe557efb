"""What mpirun and srun set in the environment, in the words that torch.distributed reads."""

from __future__ import annotations

import os
import zlib

# Each of torch's variables, and where MPI launchers (Open MPI; MPICH and Intel MPI) have the same.
_NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
_FIRST_PORT, _PORTS = 20000, 10000


def adopt_launcher() -> None:
    """Under mpirun, sets the variables that ``init_process_group`` wants and that are not set.

    All ranks on one machine meet there, at a port that follows from the job, so that two jobs do not collide. Over several machines
    MASTER_ADDR must be given (``mpirun -x MASTER_ADDR=…``): only the user knows which network to take.
    """
    if "RANK" in os.environ or not any(name in os.environ for name in _NAMES["WORLD_SIZE"]):
        return
    for wanted, names in _NAMES.items():
        found = next((os.environ[name] for name in names if name in os.environ), None)
        if found is not None:
            os.environ.setdefault(wanted, found)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    job = next((os.environ[name] for name in _JOB_NAMES if name in os.environ), str(os.getppid()))
    os.environ.setdefault("MASTER_PORT", str(_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS))
