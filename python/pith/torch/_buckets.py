# SPDX-License-Identifier: Apache-2.0
"""DDP's buckets, as far as they matter to compression.

DDP hands over gradients bucket by bucket, of 25 MiB unless the user says otherwise: half of a small model has been differentiated before
anything can leave. What leaves together does not depend on buckets here, so smaller ones change no bit; they only let the exchange begin
sooner.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.nn.parallel import DistributedDataParallel

BUCKET_BYTES = 4 << 20
_NEEDED = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper")


def make_smaller(ddp: DistributedDataParallel) -> bool:
    """Lets DDP make its buckets again, smaller; not if the user chose their size, or where this torch does it in another way.

    DDP does the same when it is loaded from a file.
    """
    model: Any = ddp  # its own affairs, of which types say little
    config: Any = getattr(model, "_bucket_config", None)
    first: Any = getattr(config, "first_bucket_bytes_cap", None)
    others: Any = getattr(config, "bucket_bytes_cap", None)
    is_known = dataclasses.is_dataclass(config) and first is not None and others is not None
    if not is_known:
        return False
    if first >= others or others <= BUCKET_BYTES:
        return False  # only by default the first bucket is smaller than the others
    if not all(hasattr(model, name) for name in _NEEDED):
        return False
    if model.mixed_precision is not None or getattr(model, "_use_python_reducer", False):
        return False  # there, DDP has done more with its buckets than it would do again
    model._bucket_config = dataclasses.replace(config, bucket_bytes_cap=BUCKET_BYTES)
    model.bucket_bytes_cap = BUCKET_BYTES
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    return True
