# SPDX-License-Identifier: Apache-2.0
"""What is freed in a step and needed in the next stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

import needs

needs.module("torch", "pith.torch needs torch")

STEPS = """
import resource, torch
from pith.torch._malloc import keep_memory
kept = keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    blocks = [torch.zeros(1500000) for _ in range(6)]
step(); step()
before = faults()
for _ in range(10):
    step()
print(int(kept), (faults() - before) // 10)
"""


def faults_of_a_step(environment: dict[str, str]) -> tuple[bool, int]:
    import os

    ran = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = ran.stdout.split()
    return kept == "1", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt() as meant here is glibc's")
def test_memory_is_kept_unless_the_user_chose_otherwise() -> None:
    kept, faults = faults_of_a_step({})
    assert kept
    assert faults < 2000  # 36 MB are 9,000 pages
    assert not faults_of_a_step({"PITH_KEEP_MEMORY": "0"})[0]
    assert not faults_of_a_step({"MALLOC_TRIM_THRESHOLD_": "128000"})[0]
