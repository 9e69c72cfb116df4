"""Small trainings that fail, or are healthy, with the cause that is right for each by reasoning about its script."""

from tests.integration.failures import arithmetic, given, networks, overflowing, parameters, ranks
from tests.integration.failures.row import Record, Row

__all__ = ["ROWS", "Record", "Row"]

ROWS = {
    **overflowing.ROWS,
    **arithmetic.ROWS,
    **networks.ROWS,
    **given.ROWS,
    **parameters.ROWS,
    **ranks.ROWS,
}
