# SPDX-License-Identifier: Apache-2.0
"""The package as a newcomer gets it: built as it is published, installed where there is nothing but torch, used as the pages say."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

import needs
from clean_venv import CleanVenv
from pages import Block, blocks_of, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/guide.md", "docs/pytorch.md", "docs/optimizers.md")
WITH_NUMPY = ("docs/python.md",)
NEED_NUMPY = (("docs/pytorch.md", "checkpoint"),)  # torch.distributed.checkpoint does
SOURCES = (
    "CMakeLists.txt",
    "README.md",
    "cmake",
    "cuda",
    "include",
    "modules",
    "pyproject.toml",
    "python",
    "src",
    "tools/wheel",
)

for needed in ("torch", "build", "auditwheel"):
    if (
        importlib.util.find_spec(needed) is None
        or needed == "build"
        and importlib.util.find_spec("build").origin is None
    ):
        needs.lacks(needed, f"{needed} is not installed: tools/python-env installs it")


# ---- What is published -----------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """Of everything that the wheel is made from."""
    files = [
        path
        for name in SOURCES
        for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
    ]
    digest = hashlib.sha256()
    for path in files:
        if path.is_file() and path.suffix != ".pyc":
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder that tools/wheel has filled; an old one if nothing has changed since."""
    folder = ROOT / "build-dist" / fingerprint()
    if not folder.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        fresh = folder.with_suffix(".new")
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / "wheel", "--out", fresh],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        fresh.rename(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanVenv:
    made = CleanVenv(tmp_path_factory.mktemp("clean") / "venv")
    made.install(f"{wheel}[torch]")
    return made


def is_module(text: str) -> bool:
    """Whether it names what is opened at run time, and needs an MPI, UCX or OpenSSL then."""
    return "pith_transport_" in text or "pith_tls" in text


def test_the_wheel_is_for_many_systems_and_bundles_nothing(wheel: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"pith-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if not name.startswith(("pith/", "pith-"))]
        bare = tmp_path / wheel.name  # without the modules
        with zipfile.ZipFile(bare, "w") as target:
            for name in names:
                lines = (
                    archive.read(name).splitlines(keepends=True) if name.endswith("RECORD") else []
                )
                data = (
                    b"".join(line for line in lines if not is_module(line.decode()))
                    if lines
                    else archive.read(name)
                )
                if not is_module(name):
                    target.writestr(archive.getinfo(name), data)
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", bare],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tag = wheel.stem.split("-")[-1]
    assert f'platform tag: "{tag}"' in " ".join(said.split()), said


def test_the_library_looks_in_no_temporary_folder(wheel: Path) -> None:
    """Where the wheel was built, anybody could put a module later."""
    with zipfile.ZipFile(wheel) as archive:
        library = next(name for name in archive.namelist() if "/libpith.so" in name)
        text = archive.read(library)
    assert b"/usr/local/lib/pith" in text
    assert b"/tmp/" not in text and b"platlib" not in text


def test_the_source_distribution_has_what_a_build_needs_and_no_more(sdist: Path) -> None:
    """The wheel of these tests was built from it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "CMakeLists.txt",
        "include/pith/pith.h",
        "src/comm/comm.c",
        "python/pith/__init__.py",
        "CHANGELOG.md",
        "LICENSE",
    } <= names
    assert not [
        name for name in names if name.startswith((".venv", "build", "dist", ".git/", ".ci"))
    ]


def test_every_version_is_that_of_the_header(clean: CleanVenv, wheel: Path, sdist: Path) -> None:
    header = (ROOT / "include/pith/pith.h").read_text()
    version = ".".join(
        re.findall(r"^#define PITH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    code = "import importlib.metadata, pith; print(pith.__version__, pith.version(), importlib.metadata.version('pith'))"
    assert clean.output(clean.python, "-c", code).split() == [version] * 3
    assert clean.output("pith", "--version") == f"pith {version}\n"
    assert (wheel.name.split("-")[1], sdist.name) == (version, f"pith-{version}.tar.gz")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_a_wheel_with_cuda_has_a_version_of_its_own(wheel: Path, tmp_path: Path) -> None:
    loader = SourceFileLoader("wheel_tool", str(ROOT / "tools" / "wheel"))
    spec = importlib.util.spec_from_loader("wheel_tool", loader)
    assert spec is not None
    tool = importlib.util.module_from_spec(spec)
    loader.exec_module(tool)
    made = tool.with_local_version(Path(shutil.copy(wheel, tmp_path)), "cu13")
    name, version, _ = wheel.name.split("-", 2)
    assert made.name.startswith(f"{name}-{version}+cu13-py3-none-")
    target = tmp_path / "installed"
    subprocess.run(  # pip compares name, metadata and list of files
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            target,
            made,
        ],
        check=True,
    )
    assert (
        f"\nVersion: {version}+cu13\n"
        in (target / f"pith-{version}+cu13.dist-info" / "METADATA").read_text()
    )
    assert (target / "pith" / "_native" / "pith").stat().st_mode & 0o100


# ---- Where there is nothing but torch ----------------------------------------------------------------------------------


def test_there_is_no_numpy(clean: CleanVenv) -> None:
    done = clean.run(clean.python, "-c", "import torch, pith, pith.torch\nimport numpy")
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'numpy'"), done.stderr


def test_the_package_is_the_installed_one(clean: CleanVenv) -> None:
    path = clean.output(clean.python, "-c", "import pith; print(pith.__file__, pith.get_library())")
    assert all(Path(part).is_relative_to(clean.bin.parent) for part in path.split()), path


def test_a_c_program_builds_against_the_installed_package(clean: CleanVenv, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    said = clean.output(
        clean.python, "-c", "import pith; print(pith.get_include()); print(pith.get_library())"
    )
    include, library = said.splitlines()
    program = tmp_path / "encode"
    flags = [f"-I{include}", library, f"-Wl,-rpath,{Path(library).parent}", "-lm"]
    clean.output(compiler, "-std=c11", ROOT / "examples/encode.c", "-o", program, *flags)
    assert "step  9: 540672 bytes instead of 4194304" in clean.output(program)


def test_all_of_pith_torch_works_without_numpy(clean: CleanVenv) -> None:
    said = clean.output(
        "torchrun",
        "--nproc-per-node",
        "2",
        "all_of_torch.py",
        cwd=Path(__file__).parent,
        env={"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert said.count("all of it works") == 2, said  # ranks may write into one line


def test_decoding_into_a_new_array_says_that_it_needs_numpy(clean: CleanVenv) -> None:
    code = "import array, pith; pith.decode(pith.encode(array.array('f', range(1000)), 'q:4'), 'q:4', n=1000)"
    done = clean.run(clean.python, "-c", code)
    assert done.stderr.strip().endswith(
        "a new array needs numpy, which is not installed; give dst instead of n"
    ), done.stderr


def test_an_example_says_what_it_needs(clean: CleanVenv) -> None:
    done = clean.run(clean.python, ROOT / "examples/pytorch/digits.py", "--steps", "1")
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
    )


# ---- The lines of the pages ------------------------------------------------------------------------------------------


def all_blocks(pages: Iterable[str] = PAGES) -> list[Block]:
    return [block for page in pages for block in blocks_of(page, (ROOT / page).read_text())]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of the repository, what a reader of the README uses; the sources of the package are not there."""
    for name in ("README.md", "examples"):
        copy: Any = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_readme_has_marked_lines() -> None:
    assert [block for block in all_blocks() if block.page == "README.md" and block.language == "sh"]
    assert [block for block in all_blocks() if block.language == "python"]


@pytest.mark.parametrize(
    "block",
    [block for block in all_blocks() if (block.page, block.name) not in NEED_NUMPY],
    ids=lambda block: f"{block.page}:{block.name}",
)
def test_the_lines_of_the_pages_run(block: Block, clean: CleanVenv, checkout: Path) -> None:
    environment = {"EXAMPLE_STEPS": "6", "OMP_NUM_THREADS": "1"}
    for script in (
        b for b in all_blocks([block.page]) if b.language == "python"
    ):  # a reader has saved them
        (checkout / f"{script.name}.py").write_text(script.code)
    if block.language == "python":
        commands = [f"torchrun --nproc-per-node 2 {block.name}.py"]
    else:
        assert block.language == "sh", f"{block.page}: {block.name} is neither sh nor python"
        # Six steps are enough where the page has more.
        commands = [re.sub(r"--steps \d+", "--steps 6", line) for line in commands_of(block.code)]
    assert commands, f"{block.page}: {block.name} has no line to run"
    for command in commands:
        clean.output("sh", "-c", command, cwd=checkout, env=environment, timeout=300)


@pytest.mark.parametrize(
    "block",
    [
        block
        for block in all_blocks((*PAGES, *WITH_NUMPY))
        if block.language == "python"
        and (block.page in WITH_NUMPY or (block.page, block.name) in NEED_NUMPY)
    ],
    ids=lambda block: f"{block.page}:{block.name}",
)
def test_the_lines_with_numpy_run(block: Block, tmp_path: Path) -> None:
    script = tmp_path / f"{block.name}.py"
    script.write_text(block.code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
