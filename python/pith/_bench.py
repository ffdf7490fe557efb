# SPDX-License-Identifier: Apache-2.0
"""``pith bench codec --import MODULE``: what the command measures, for methods in Python beside built-in ones.

Options and columns are those of the program's ``pith bench codec``. Built-in methods are called through Python here too, so that one line can be
compared with the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from ._codec import Codec
from ._errors import Error
from ._library import version
from ._methods import import_methods

_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _measured(spec: str, x: Any, repetitions: int, warmup: int) -> dict[str, Any]:
    import numpy

    codec = Codec(spec)
    rows = int(numpy.sqrt(x.size))
    state = codec.state(x.size, rows)
    total, copy = numpy.zeros_like(x), numpy.empty_like(x)
    laps = []
    payload = codec.encode(x, state=state, rows=rows)
    decoded = codec.decode(payload, numpy.zeros_like(x), rows=rows)
    error = float(numpy.linalg.norm(x - decoded) / numpy.linalg.norm(x))
    for index in range(warmup + repetitions):
        lap = (
            _seconds(lambda: numpy.copyto(copy, x)),
            _seconds(lambda: codec.encode(x, state=state, rows=rows)),  # noqa: B023
            _seconds(lambda: codec.decode(payload, total, add=True, rows=rows)),
        )
        if index >= warmup:
            laps.append(lap)
    copied, encoded, added = (statistics.median(lap[i] for lap in laps) for i in range(3))
    gigabytes = x.nbytes * 1e-9
    return {
        "codec": codec.spec,
        "parts": codec.parts,
        "bytes": x.nbytes,
        "values": x.size,
        "payload_bytes": len(payload),
        "bits_per_value": 8 * len(payload) / x.size,
        "relative_error": error,
        "encode_gbps": gigabytes / encoded,
        "encode_vs_copy": copied / encoded,
        "decode_add_gbps": gigabytes / added,
        "decode_add_vs_copy": copied / added,
        "copy_gbps": gigabytes / copied,
    }


def bench_codec(arguments: list[str]) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser("pith bench codec")
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE")
    parser.add_argument("--codec", action="append", metavar="SPEC")
    parser.add_argument("-b", type=_size, default=4 << 20, metavar="SIZE")
    parser.add_argument("-n", type=int, default=20, metavar="COUNT")
    parser.add_argument("-w", type=int, default=2, metavar="COUNT")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    import numpy

    try:
        import_methods(",".join(options.modules))
        from ._methods import names

        specs = options.codec or ["none", "q:4", *names()]
        x = numpy.random.default_rng(1).standard_normal(options.b // 4, numpy.float32)
        found = []
        wide = max(len(spec) for spec in specs)
        print(f"# pith {version()}, through Python; f32, normal; {options.n} repetitions")
        print(
            f"{'codec':{wide}}  bits/value      error  encode GB/s  ×copy  decode GB/s  ×copy",
            flush=True,
        )
        for spec in specs:
            m = _measured(spec, x, options.n, options.w)
            found.append(m)
            print(
                f"{spec:{wide}}  {m['bits_per_value']:10.3f}  {m['relative_error']:9.2e}  {m['encode_gbps']:11.2f}  "
                f"{m['encode_vs_copy']:5.2f}  {m['decode_add_gbps']:11.2f}  {m['decode_add_vs_copy']:5.2f}",
                flush=True,
            )
    except Error as error:
        print(f"pith: {error}")
        return 1
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"version": version(), "through": "python", "results": found}, file, indent=1)
    return 0
