# SPDX-License-Identifier: Apache-2.0
"""The package has the CUDA module where nvcc is, it opens on machines without a GPU, and why it cannot be used is said in full."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import needs
import pith._library as library

MODULE = library.NATIVE / "libpith_cuda.so"

ASK = """
import torch
import pith
from pith.torch._engine import check_device
try:
    check_device(torch.device("cuda:0"))
except pith.UnsupportedError as error:
    print(error)
"""


def nvcc() -> str | None:
    beside = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return shutil.which("nvcc") or shutil.which(
        "nvcc", path=os.pathsep.join(f"{folder}/bin" for folder in beside if folder)
    )


@pytest.mark.skipif(not library.NATIVE.exists(), reason="the package is used from its source tree")
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc: the package is built without CUDA")
def test_the_package_has_a_module_that_opens() -> None:
    assert MODULE.exists(), "nvcc is installed, but the package has no CUDA module"
    module = ctypes.CDLL(str(MODULE), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    assert module.pith_cuda_module_entry


def refusal(folder: Path) -> str:
    needs.module("torch", "compress() is for torch")
    environment = {**os.environ, "PITH_MODULE_PATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", ASK], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_compress_on_a_gpu_says_which_module_is_broken_and_how(tmp_path: Path) -> None:
    broken = tmp_path / "libpith_cuda.so"
    broken.write_text("This is no shared object, however long it may be: it is a sentence.\n")
    said = refusal(tmp_path)
    assert "gradients on cuda:0 cannot be compressed" in said
    assert str(broken) in said
    assert "invalid ELF header" in said
    assert "make cuda" in said and "pip install" in said


def test_compress_on_a_gpu_says_why_a_good_module_finds_no_device(tmp_path: Path) -> None:
    if not MODULE.exists():
        pytest.skip("the package has no CUDA module: it was built without nvcc")
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    said = refusal(MODULE.parent)
    assert f"{MODULE} is in order, but no CUDA device" in said
