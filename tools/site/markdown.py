# SPDX-License-Identifier: Apache-2.0
"""Markdown as HTML: the same dialect, and the same anchors, as on GitHub."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

LEXERS = {
    "sh": "bash",
    "python": "python",
    "c": "c",
    "json": "json",
    "toml": "toml",
    "yaml": "yaml",
}


@dataclass
class Text:
    """One page: its HTML, and what other pages need to know of it."""

    html: str
    title: str
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text
    links: list[tuple[int, str]] = field(default_factory=list)  # line, target
    words: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # anchor, heading, what is below it


def anchor_of(heading: str) -> str:
    """As GitHub makes them from a heading."""
    text = re.sub(r"<[^>]*>", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def code_html(code: str, language: str) -> str:
    if language not in LEXERS:
        return f"<pre><code>{escape(code)}</code></pre>"
    formatter = HtmlFormatter(nowrap=True)
    return (
        f"<pre><code>{highlight(code, get_lexer_by_name(LEXERS[language]), formatter)}</code></pre>"
    )


def _plain(inline) -> str:
    return "".join(
        t.content if t.type in ("text", "code_inline") else " " if t.type.endswith("break") else ""
        for t in inline.children or []
    )


def to_html(source: str, rewrite=lambda target: target) -> Text:
    """`rewrite` turns the target of a link into the one of the site."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(source)
    text = Text("", "")
    seen: dict[str, int] = {}
    section = ("", "")
    below: list[str] = []
    line = 1
    for i, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else line
        if token.type == "heading_open":
            if below or section[1]:
                text.words.append((*section, " ".join(below)))
            below = []
            heading = _plain(tokens[i + 1])
            anchor = anchor_of(heading)
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            anchor += f"-{count}" if count else ""
            token.attrSet("id", anchor)
            level = int(token.tag[1])
            text.title = text.title or heading
            text.headings.append((level, anchor, heading))
            section = (anchor, heading)
        elif token.type == "inline":
            if tokens[i - 1].type != "heading_open":
                below.append(_plain(token))
            for child in token.children or []:
                if child.type == "link_open":
                    text.links.append((line, str(child.attrs["href"])))
                    child.attrs["href"] = rewrite(str(child.attrs["href"]))
                elif child.type == "image":
                    text.links.append((line, str(child.attrs["src"])))
                    child.attrs["src"] = rewrite(str(child.attrs["src"]))
                elif child.type == "html_inline":
                    for name in re.findall(r'\b(?:id|name)="([^"]+)"', child.content):
                        text.headings.append((7, name, ""))
        elif token.type in ("fence", "code_block"):
            below.append(token.content)
        elif token.type == "html_block":
            for name in re.findall(r'\b(?:id|name)="([^"]+)"', token.content):
                text.headings.append((7, name, ""))
    text.words.append((*section, " ".join(below)))
    parser.add_render_rule(
        "fence",
        lambda self, tokens, i, options, env: (
            code_html(tokens[i].content, tokens[i].info.split(" ")[0]) + "\n"
        ),
    )
    html = parser.renderer.render(tokens, parser.options, {})
    html = re.sub(r"<!--.*?-->\n?", "", html, flags=re.S)
    text.html = html.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )
    return text
