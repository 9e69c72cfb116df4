"""One rank of one trace as blocks of numpy columns, in the order of the run."""
