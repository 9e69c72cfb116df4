"""What can be wrong with a trace or with a question put to one.

One root, and one leaf for each thing that a user would do differently about it. Messages are one line, name the file
and say what to do.
``exit_code`` is what the command line returns for each (see ``cli``).
"""

from __future__ import annotations


class TraceError(Exception):
    """The base class of the analyzer's errors."""

    exit_code = 3


class TraceNotFoundError(TraceError):
    """There is nothing at the path, or there is no permission to read it."""


class NotATraceError(TraceError):
    """The file or directory is there, but the recorder did not write it."""


class DamagedTraceError(TraceError):
    """Nothing in the trace can be read any more."""


class UnknownVersionError(TraceError):
    """The trace has a format version that this reader does not know."""


class EmptyTraceError(TraceError):
    """The trace can be read, but nothing was recorded. This never counts as clean."""


class NotRecordedError(TraceError):
    """The trace does not hold the rank, batch or module."""

    exit_code = 2


class MissingExtraError(TraceError):
    """A package that is an extra is not installed."""

    exit_code = 2
