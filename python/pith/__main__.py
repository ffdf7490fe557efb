# SPDX-License-Identifier: Apache-2.0
"""``python -m pith``: the command."""

from ._command import main

main()
