# SPDX-License-Identifier: Apache-2.0
"""python tools/site: see build.py."""

from build import main

main()
