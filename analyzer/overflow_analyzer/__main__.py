"""``python -m overflow_analyzer``: the same as ``overflow-analyze``, where its script is not on the path."""

from __future__ import annotations

import sys

from overflow_analyzer.cli import main

if __name__ == "__main__":
    sys.exit(main())
