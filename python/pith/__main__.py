"""``python -m pith``: the command."""

from ._command import main

main()
