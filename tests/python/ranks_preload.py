# SPDX-License-Identifier: Apache-2.0
"""What every rank needs; imported once, by the process that the ranks are forked from."""

import contextlib

import numpy  # noqa: F401

import pith  # noqa: F401

with contextlib.suppress(ImportError):
    import torch
    import torch._dynamo  # what DistributedDataParallel imports when it is first used

    import pith.torch  # noqa: F401

    torch.set_num_threads(1)

with contextlib.suppress(ImportError):
    import jax  # noqa: F401
    import optax  # noqa: F401

    import pith.jax  # noqa: F401
