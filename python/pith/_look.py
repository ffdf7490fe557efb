# SPDX-License-Identifier: Apache-2.0
"""How Pith's pages and pictures look: colours for light and dark, fonts and the parts of figures. One place for the demo, the evaluation's report and the
site; src/cli/base/plot.c has the same colours for the plots of the command (tests/python/test_look.py compares them)."""

from __future__ import annotations

# Text and surfaces, then numbered colours: 0 uncompressed, 1 others' methods, 2–7 families of methods, 8–12 parts of a step. Texts in colours 0–7 have a
# contrast of at least 4.5 on both surfaces.
LIGHT = {
    "paper": "#ffffff", "ink": "#1b1f24", "soft": "#57606a", "line": "#d8dee4", "card": "#f6f8fa",
    "c0": "#24292f", "c1": "#656d76", "c2": "#0072b2", "c3": "#b35900", "c4": "#00785a", "c5": "#a8337a", "c6": "#7f6300", "c7": "#5b4bb7",
    "c8": "#b6bec7", "c9": "#0072b2", "c10": "#4ba3d8", "c11": "#d55e00", "c12": "#a9642e",
}  # fmt: skip
DARK = {
    "paper": "#0d1117", "ink": "#e6edf3", "soft": "#9aa4af", "line": "#30363d", "card": "#161b22",
    "c0": "#f0f3f6", "c1": "#9aa4af", "c2": "#56b4e9", "c3": "#f0a04b", "c4": "#2fc79a", "c5": "#e58ac0", "c6": "#e3c84b", "c7": "#b3a6ff",
    "c8": "#4b545e", "c9": "#3d8fd1", "c10": "#8ccbf2", "c11": "#f0814a", "c12": "#c98d5d",
}  # fmt: skip
_PRINT = {
    "paper": "#ffffff",
    "ink": "#000000",
    "soft": "#444444",
    "line": "#bbbbbb",
    "card": "#ffffff",
}


def _root(colours: dict[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{value}" for name, value in colours.items()) + "}"


# Dark where the reader's system is dark. Paper is white.
VARIABLES = f"{_root(LIGHT)}\n@media (prefers-color-scheme:dark){{{_root(DARK)}}}\n@media print{{{_root({**LIGHT, **_PRINT})}}}\n"

FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif'
MONO = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'

# What pith.eval.svg draws.
FIGURES = (
    f"svg{{width:100%;height:auto;display:block;font:12px {FONT}}}\n"
    """text{fill:var(--ink)}.tick,.note{fill:var(--soft);font-size:11px}.name{fill:var(--soft);font-size:12px}.value{font-size:11px}
.label{font-size:12px;paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}.strong{font-weight:700}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}.leader{stroke:var(--soft);stroke-width:.6}.faint{opacity:.4;stroke-dasharray:1 3}
.mark{stroke:var(--soft);stroke-dasharray:5 4}.pareto{fill:none;stroke:var(--soft);stroke-width:1.4}
.curve{fill:none;stroke-width:1.8}.bold{stroke-width:3}.dashed{stroke-dasharray:5 3}.error{stroke-width:1.3;opacity:.7}
.dot{stroke:var(--card);stroke-width:1}.band{opacity:.18;stroke:none}
"""
    + "".join(
        f".dot.c{i},.bar.c{i},.band.c{i}{{fill:var(--c{i})}}.curve.c{i},.error.c{i}{{stroke:var(--c{i})}}.label.t{i}{{fill:var(--c{i})}}"
        for i in range(13)
    )
    + "\n"
)
