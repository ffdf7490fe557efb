# SPDX-License-Identifier: Apache-2.0
"""The documentation: its links have targets, its blocks are tested or say why not, and the reference lacks nothing. The commands of pages that no other test
runs are run here, as they are there but for sizes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import needs
from pages import Block, blocks_of, commands_of
from test_launchers import command

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tools" / "site"
PAGES = ("docs/command.md", "docs/planner.md", "docs/scale.md", "docs/adding-a-codec.md")
OTHER_PAGES = ("docs/python.md",)  # test_install.py runs its Python


@pytest.fixture(scope="module")
def build() -> ModuleType:
    for name in ("griffe", "markdown_it", "pygments"):
        needs.module(name, "the site is made with it: tools/python-env installs it")
    sys.path.insert(0, str(SITE))
    try:
        import build

        return build
    finally:
        sys.path.remove(str(SITE))


# ---- What the checks say of this tree ----------------------------------------------------------------------------------


def test_nothing_is_wrong_with_the_documentation(build: ModuleType) -> None:
    assert not build.complaints()


def test_the_site_has_every_page_and_works_without_a_network(
    build: ModuleType, tmp_path: Path
) -> None:
    assert build.build(tmp_path) > 40
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "docs" / f"{page.stem}.html").exists(), page.name
    index = (tmp_path / "index.html").read_text()
    assert 'href="docs/pytorch.html"' in index and 'href="reference/c-comm.html"' in index
    groups = ("Start", "Train", "Measure", "Understand", "Take part", "more", "reference")
    assert all(f"<h2>{group}</h2>" in index for group in groups)
    loaded = [
        link
        for page in tmp_path.rglob("*.html")
        for link in re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', page.read_text())
    ]
    assert len(loaded) > 100
    assert not [link for link in loaded if re.match(r"(?:https?:)?//", link)]
    for page in tmp_path.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#]+)(?:#[^"]*)?"', page.read_text()):
            if not re.match(r"[a-z]+:", link):
                target = (page.parent / link).resolve()
                assert target.exists(), f"{page.relative_to(tmp_path)}: {link}"
    assert "pith_allreduce" in (tmp_path / "search-index.js").read_text()


def test_the_page_of_specs_is_that_of_this_library(build: ModuleType) -> None:
    import specs

    assert (ROOT / "docs/specs.md").read_text() == specs.page(), "make specs writes it"


# ---- The checks find what is wrong -------------------------------------------------------------------------------------


def test_dead_links_are_found(build: ModuleType) -> None:
    pages = {
        "README.md": "# A\n\n[a](docs/b.md) [b](docs/b.md#two-words) [c](#a) [d](https://x.y) [e](LICENSE)\n",
        "docs/b.md": "# B\n\n## Two words\n\n[up](../README.md#a)\n",
    }
    assert not build.dead_links(pages)
    pages["docs/b.md"] = "# B\n\n## Two other words\n\n[up](README.md) ![p](no.svg) `[not](one)`\n"
    found = build.dead_links(pages)
    assert [line.partition(": ")[0] for line in found] == [
        "README.md:3",
        "docs/b.md:5",
        "docs/b.md:5",
    ]


def test_what_has_no_comment_is_found(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x.h").write_text(
        "/* A header. */\n#ifndef X_H\n#define X_H\n\n/* Says so. */\nPITH_API int pith_good(int a,\n             int b);\n\n"
        "PITH_API int pith_bad(void);\nPITH_API void pith_told(void); /* by the side */\n\n"
        "typedef struct pith_thing {\n  int a; /* ; } */\n} pith_thing;\n\n#define PITH_THING_INIT {0}\n\n#endif\n"
    )
    found = build.headers.complaints(tmp_path)
    assert [line.split()[-2] for line in found] == ["pith_bad", "pith_thing"]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```sh\nls\n```", "a block without a test"),
        ("<!-- not run: no reason -->\n```sh\npith bensh\n```", "pith has no command bensh"),
        ("<!-- not run: x -->\n```sh\npith bench codec --jsn\n```", "pith bench has no option --jsn"),
        ("<!-- not run: x -->\n```sh\nmake tests\n```", "there is no make tests"),
        ("<!-- not run: x -->\n```sh\nsh tests/cli/none.sh\n```", "there is no tests/cli/none.sh"),
        ("<!-- not run: x -->\n```python\npith.torch.compres(m)\n```", "there is no pith.torch.compres"),
        ("<!-- not run: x -->\n```python\nx = (\n```", "Python cannot read it"),
        ("<!-- not run: x -->\n```c\npith_alreduce();\n```", "there is no pith_alreduce"),
        ("<!-- same as: examples/encode.c -->\n```c\nint mein(void) {\n```", "has no line"),
        ("<!-- tested by: tests/cli/lab.sh -->\n```sh\npith plan bench\n```", "says nothing of 'plan'"),
        ("<!-- test: x -->\n```sh\npith doctor\n```", "no tests/python/test_*.py names it"),
        ("Measured by `python bench/none.py --fast`.", "there is no bench/none.py"),
        ("Measured by `pith bench codec --jsn`.", "pith bench has no option --jsn"),
    ],
)  # fmt: skip
def test_blocks_that_nothing_tests_are_found(build: ModuleType, block: str, complaint: str) -> None:
    found = build.blocks.complaints(ROOT, {"docs/" + "page.md": f"# P\n\n{block}\n"})
    assert len(found) == 1 and complaint in found[0], found


def test_every_section_of_figures_names_the_command_that_makes_them() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    sections = [
        section for section in re.split(r"^#{2,3} ", page, flags=re.M)[1:] if "|--" in section
    ]
    run = re.compile(
        r"`(?:sudo )?(?:\w+=\S+ )*(?:make|python|(?:build/)?pith|(?:bench|build|tools)/\S+) [^`]+`"
    )
    without = [section.partition("\n")[0] for section in sections if not run.search(section)]
    assert len(sections) > 15 and not without


# ---- The lines of the pages ------------------------------------------------------------------------------------------


def marked() -> list[Block]:
    found = [b for page in PAGES for b in blocks_of(page, (ROOT / page).read_text())]
    other = [b for page in OTHER_PAGES for b in blocks_of(page, (ROOT / page).read_text())]
    return [*found, *(block for block in other if block.language == "sh")]


def smaller(line: str) -> str:
    """Ranges of sizes that end early, fewer ranks to simulate, and no measurements of minutes."""
    line = re.sub(r"-e \d+M", "-e 1M", re.sub(r"-b \d+M -e \d+M", "-b 256K -e 256K", line))
    return line.replace("2..4096", "2..64").replace("-n 256 ", "-n 16 ")


def gradients(folder: Path) -> None:
    """What the commands of docs/planner.md read: a list of layers, and their raw values."""
    import random
    from array import array

    draw = random.Random(1)
    lines = []
    for name, shape in (("embed", (256, 64)), ("up", (128, 64)), ("down", (64, 128))):
        values = array("f", (draw.gauss(0, 1) for _ in range(shape[0] * shape[1])))
        (folder / f"{name}.f32").write_bytes(values.tobytes())
        lines.append(f"{name}.weight {shape[0]}x{shape[1]} {name}.f32")
    (folder / "gradients.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("block", marked(), ids=lambda block: f"{block.page}:{block.name}")
def test_the_commands_of_the_pages_run(block: Block, tmp_path: Path) -> None:
    path = f"{Path(command()).parent}:{Path(sys.executable).parent}"
    if block.language == "python":
        (tmp_path / f"{block.name}.py").write_text(block.code)
        commands = [f"{sys.executable} {block.name}.py"]
    else:
        for script in blocks_of(block.page, (ROOT / block.page).read_text()):
            if script.language == "python":
                (tmp_path / f"{script.name}.py").write_text(script.code)
        (tmp_path / "train.py").write_text(TRAIN)
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        (tmp_path / "cluster.topology").write_text("per_host = 4\n")
        gradients(tmp_path)
        if "stats.json" in block.code and "plan stats" not in block.code:
            statistics = [command(), "plan", "stats", "gradients.txt", "-o", "stats.json"]
            subprocess.run(statistics, cwd=tmp_path, check=True, capture_output=True)
        commands = ["set -e\n" + "\n".join(smaller(line) for line in commands_of(block.code))]
    if " lab " in commands[0]:
        tried = subprocess.run(
            [command(), "lab", "-n", "2", "--rate", "1gbit", "--", "true"],
            capture_output=True,
            text=True,
        )
        if tried.returncode != 0:
            needs.lacks("lab", tried.stderr.strip())
    for line in commands:
        done = subprocess.run(
            ["sh", "-c", f"PATH={path}:$PATH\n{line}"],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


TRAIN = """
import numpy, pith
with pith.Comm() as comm:
    x = numpy.ones(4096, "f4")
    comm.allreduce(x, "mean", codec="largest:0.5")
"""
