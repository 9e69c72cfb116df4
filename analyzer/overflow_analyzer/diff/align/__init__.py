"""What is laid beside what: ranks, batches, modules, rows."""
