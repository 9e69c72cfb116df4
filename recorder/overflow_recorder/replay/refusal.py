"""What ends a second run early. Neither is an ``Exception``: a forward that catches those does not catch these."""

from __future__ import annotations


class Refused(BaseException):
    """The second run could not be true or safe.

    Args:
        reason: A sentence without a full stop.
        outward: Whether running the module around it again may still show the operation.
    """

    def __init__(self, reason: str, *, outward: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.outward = outward


class TargetReached(BaseException):
    """The module at which the inf/nan was detected has been called with it."""
