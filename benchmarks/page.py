"""The page of a big trace: time, memory and size of ``overflow-analyze html``, a whole process on one core.

    python -m benchmarks.page                     make a trace of 1e7 rows, then measure
    python -m benchmarks.page --rows 100000000    of 1e8 rows (some minutes, 0.6 GB)

The trace is that of ``first_nonfinite``: 400 modules with a weight, an input and an output each, figures of a float16
training.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.first_nonfinite import MEBIBYTE, best, make
from overflow_analyzer.convert.compact import ROWS_A_GROUP

PAGE = (
    "from overflow_analyzer.cli import main; raise SystemExit(main(['html', {trace!r}, '-o', {page!r}, '--overwrite']))"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of which the best counts")
    parser.add_argument("--file", type=Path, help="where to keep the trace, or one made before")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as temporary:
        path, page = options.file or Path(temporary) / "compacted.parquet", Path(temporary) / "page.html"
        if not path.exists():
            make(path, options.rows, ROWS_A_GROUP)
        cost = best({"page": PAGE.format(trace=str(path), page=str(page))}, options.runs)["page"]
        print(f"{path.stat().st_size / MEBIBYTE:.0f} MiB of rows, a page of {page.stat().st_size / MEBIBYTE:.1f} MiB")
        print(f"wall {cost.wall:.1f} s, CPU {cost.cpu:.1f} s, peak {cost.peak:.0f} MiB")


if __name__ == "__main__":
    main()
