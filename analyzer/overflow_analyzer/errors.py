"""What can be wrong with a trace or with a question put to one.

One root, and one leaf for each thing that a user would do differently about it. Messages are one line, name the file
and say what to do.
``exit_code`` is what the command line returns for each (see ``cli``).
"""

from __future__ import annotations


class TraceError(Exception):
    """The root of everything the analyzer refuses."""

    exit_code = 3


class TraceNotFoundError(TraceError):
    """There is nothing at the path, or it may not be read."""


class NotATraceError(TraceError):
    """The file or directory is there but was not written by the recorder."""


class DamagedTraceError(TraceError):
    """A trace of which nothing can be read any more."""


class UnknownVersionError(TraceError):
    """The trace was written in a format version that this reader does not know."""


class EmptyTraceError(TraceError):
    """A readable trace in which nothing was recorded: never to be reported as clean."""


class NotRecordedError(TraceError):
    """The rank, batch or module that was asked for is not in the trace."""

    exit_code = 2
