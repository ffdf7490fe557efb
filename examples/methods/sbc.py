# SPDX-License-Identifier: Apache-2.0
"""Sparse Binary Compression, from its paper, in Python, and what it is worth beside top-k.

F. Sattler, S. Wiedemann, K.-R. Müller, W. Samek: Sparse Binary Compression: Towards Distributed Deep Learning with minimal Communication,
arXiv 1805.08768, algorithm 2. Of the largest share p of the positive values and of the negative ones, the side with the larger mean is sent:
where its values are, and that mean. Everything else stays in the residual, so it belongs behind error feedback: ``ef/sbc:0.01``.

    python examples/methods/sbc.py              # trains with it and with its rivals, and writes a report (a minute on 2 cores)
    pith bench codec --import examples/methods/sbc.py --codec sbc --codec topk:0.01
"""

from __future__ import annotations

import numpy as np

import pith


@pith.method("sbc", bits="32·p/2", bound=lambda n: 4 * n)
class SparseBinary:
    """places of the largest values of one sign, and their mean."""

    def __init__(self, p: float = 0.01) -> None:
        if not 0 < p <= 1:
            raise ValueError(f"p is {p}, and it is a share between 0 and 1")
        self.p = p

    def encode(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = max(1, round(self.p * x.size / 2))
        above, below = (np.argpartition(side, -k)[-k:] for side in (x, -x))
        mean_above, mean_below = x[above].mean(), x[below].mean()
        places, mean = (above, mean_above) if mean_above >= -mean_below else (below, mean_below)
        return np.sort(places).astype("uint32"), np.float32([mean])

    def decode(self, payload: tuple[np.ndarray, np.ndarray], n: int) -> np.ndarray:
        places, mean = payload
        x = np.zeros(n, "float32")
        x[places] = mean[0]
        return x


def main() -> None:
    from pith.eval import evaluate

    grid = {
        "import": [__file__],
        "run": [
            {
                "task": ["digits"],
                "spec": ["bf16", "ef/topk:0.01", "ef/sbc:0.01", "sbc:0.01"],
                "link": ["100mbit"],
                "ranks": [2],
                "seeds": 2,
                "rates": [0.5, 1, 2],
            }
        ],
    }
    evaluate(grid, "build/sbc")


if __name__ == "__main__":
    main()
