# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a site that works offline, from file://, and checks it.

    python tools/site --out build/site     # the site: README, docs, and the reference made from headers and docstrings
    python tools/site --check              # only says what is wrong: dead links and anchors, what has no comment, blocks that nothing tests
    python tools/site --specs              # writes docs/specs.md from the list of methods

A page that is added to docs/ is in the site without further ado; its place in the menu follows from the table at the end of README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import blocks  # noqa: E402
import headers  # noqa: E402
import markdown  # noqa: E402
import modules  # noqa: E402
import reference  # noqa: E402

TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "ROADMAP.md")


def look():
    """python/pith/_look.py without the package around it, which may not be installed."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("pith_look", ROOT / "python/pith/_look.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- Sources ---------------------------------------------------------------------------------------------------------


def sources(root: Path = ROOT) -> dict[str, str]:
    """Every page as Markdown, by its path in the site without the suffix."""
    names = [name for name in TOP if (root / name).exists()]
    names += [str(path.relative_to(root)) for path in sorted((root / "docs").glob("**/*.md"))]
    return {name: (root / name).read_text(encoding="utf-8") for name in names}


def made_pages() -> dict[str, str]:
    """The reference."""
    include, python = ROOT / "include/pith", ROOT / "python"
    pages = {
        "index.md": reference.index_page(include, python),
        **reference.module_pages(python),
        **reference.header_pages(include),
    }
    return {f"reference/{name}": text for name, text in pages.items()}


def url_of(page: str) -> str:
    return "index.html" if page == "README.md" else page.removesuffix(".md") + ".html"


def menu(pages: dict[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of pages with their names: the last list of the README, then pages that it does not have, then the reference."""
    listed = pages["README.md"].rpartition("\n## Read on")[2]
    groups, seen = [], {"README.md"}
    for group, links in re.findall(r"^- \*\*(.+?)\*\*: (.+(?:\n  .+)*)$", listed, re.M):
        entries = []
        for name, target in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", links):
            if target in pages and target not in seen:
                seen.add(target)
                entries.append((target, " ".join(name.split())))
        if entries:
            groups.append((group, entries))
    other = [
        (p, markdown.to_html(t).title)
        for p, t in pages.items()
        if p not in seen and not p.startswith("reference/")
    ]
    made = [
        (p, "all of it" if p == "reference/index.md" else markdown.to_html(t).title)
        for p, t in pages.items()
        if p.startswith("reference/")
    ]
    return [*groups, *([("more", other)] if other else []), ("reference", made)]


# ---- Links -----------------------------------------------------------------------------------------------------------


def _target(page: str, link: str) -> tuple[str, str]:
    """Path from the root, and anchor."""
    path, _, anchor = link.partition("#")
    return (os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page), anchor


def _is_outside(link: str) -> bool:
    return re.match(r"[a-z]+:", link) is not None


def dead_links(pages: dict[str, str], root: Path = ROOT) -> list[str]:
    texts = {page: markdown.to_html(text) for page, text in pages.items()}
    found = []
    for page, text in texts.items():
        for line, link in text.links:
            if _is_outside(link):
                continue
            path, anchor = _target(page, link)
            if path in texts:
                if anchor and anchor not in {a for _, a, _ in texts[path].headings}:
                    found.append(f"{page}:{line}: {link}: {path} has no heading with this anchor")
            elif not (root / path).exists():
                found.append(f"{page}:{line}: {link}: there is no {path}")
            elif anchor:
                found.append(f"{page}:{line}: {link}: an anchor in a file that is no page")
    return found


def _rewriter(page: str, pages: dict[str, str], files: set[str]):
    """Links of a page as the site has them. Files outside the pages are collected, to be copied."""

    def rewrite(link: str) -> str:
        if _is_outside(link) or link.startswith("#"):
            return link
        path, anchor = _target(page, link)
        header = f"reference/{reference.page_of_header(os.path.basename(path))}"
        if path.startswith("include/pith/") and header in pages:
            path = header
        if path in pages:
            path = url_of(path)
        elif (ROOT / path).exists():
            files.add(path)
        else:
            return link
        return os.path.relpath(path, os.path.dirname(url_of(page)) or ".") + (
            f"#{anchor}" if anchor else ""
        )

    return rewrite


# ---- Pages -----------------------------------------------------------------------------------------------------------


def _side(page: str, groups) -> str:
    root = "../" * url_of(page).count("/")
    parts = []
    for name, entries in groups:
        items = "".join(
            f'<li><a href="{root}{url_of(target)}"{" aria-current=page" if target == page else ""}>{escape(title)}</a></li>'
            for target, title in entries
        )
        parts.append(f"<h2>{escape(name)}</h2><ul>{items}</ul>")
    return f'<nav class="side" aria-label="Pages"><details open><summary>All pages</summary>{"".join(parts)}</details></nav>'


def _toc(text: markdown.Text) -> str:
    items = "".join(
        f'<li{" class=deep" if level == 3 else ""}><a href="#{anchor}">{escape(title)}</a></li>'
        for level, anchor, title in text.headings
        if level in (2, 3)
    )
    return f'<nav class="toc" aria-label="On this page">{"<h2>on this page</h2><ul>" + items + "</ul>" if items else ""}</nav>'


def page_html(page: str, text: markdown.Text, groups, version: str) -> str:
    root = "../" * url_of(page).count("/")
    body = re.sub(
        r'<h([23]) id="([^"]*)">(.*?)</h\1>',
        r'<h\1 id="\2">\3<a class="anchor" href="#\2" aria-label="link to this section">#</a></h\1>',
        text.html,
    )
    title = "Pith" if page == "README.md" else f"{text.title} · Pith"
    return (
        f'<!doctype html><html lang="en" data-root="{root}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><link rel="stylesheet" href="{root}site.css"></head><body>'
        f'<header><a href="{root}index.html">Pith</a><div class="search"><input type="search" placeholder="Search (/)" aria-label="Search" autocomplete="off">'
        f'<ol></ol></div></header><div class="layout">{_side(page, groups)}<main>{body}<footer>Pith {version}, Apache License 2.0.</footer></main>{_toc(text)}</div>'
        f'<script src="{root}search.js"></script></body></html>\n'
    )


def build(out: Path) -> int:
    pages = {**sources(), **made_pages()}
    groups = menu(pages)
    version = re.search(r"^## (\S+)", pages["CHANGELOG.md"], re.M)
    shutil.rmtree(out, ignore_errors=True)
    index, files = [], set()
    for page, source in pages.items():
        text = markdown.to_html(source, _rewriter(page, pages, files))
        target = out / url_of(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            page_html(page, text, groups, version[1] if version else ""), encoding="utf-8"
        )
        for anchor, heading, words in text.words:
            url = url_of(page) + (f"#{anchor}" if anchor else "")
            index.append([url, text.title, heading, re.sub(r"\s+", " ", words)[:4000]])
    for name in sorted(files):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, out / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, out / name)
    style = look()
    fonts = f":root{{--font:{style.FONT};--mono:{style.MONO}}}\n"
    (out / "site.css").write_text(
        style.VARIABLES + fonts + (HERE / "site.css").read_text(encoding="utf-8"), encoding="utf-8"
    )
    shutil.copy(HERE / "search.js", out / "search.js")
    (out / "search-index.js").write_text(
        f"window.PITH_INDEX={json.dumps(index, ensure_ascii=False, separators=(',', ':'))};\n",
        encoding="utf-8",
    )
    return len(pages)


def complaints() -> list[str]:
    pages = sources()
    return [
        *headers.complaints(ROOT / "include/pith"),
        *modules.complaints(ROOT / "python"),
        *dead_links({**pages, **made_pages()}),
        *blocks.complaints(ROOT, pages),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tools/site", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="build/site", help="the folder of the site")
    parser.add_argument("--check", action="store_true", help="say what is wrong, and write nothing")
    parser.add_argument("--specs", action="store_true", help="write docs/specs.md")
    a = parser.parse_args()
    if a.specs:
        import specs

        (ROOT / "docs/specs.md").write_text(specs.page(), encoding="utf-8")
        return
    found = complaints()
    for line in found:
        print(line, file=sys.stderr)
    if not a.check:
        count = build(Path(a.out))
        print(f"site: {count} pages, {Path(a.out).resolve()}/index.html")
    if found:
        raise SystemExit(f"site: {len(found)} complaints")
    if a.check:
        print(
            "docs: every link has its target, every public name its text, every block its test or the reason why not"
        )


if __name__ == "__main__":
    main()
