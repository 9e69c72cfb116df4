"""Values to text and pages, and nothing else."""
