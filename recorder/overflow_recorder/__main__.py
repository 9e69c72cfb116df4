"""``python -m overflow_recorder train.py``: the same as ``overflow-record``, and what torchrun can start."""

from __future__ import annotations

import sys

from overflow_recorder.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
