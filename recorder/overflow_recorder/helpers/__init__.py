"""Training helpers: seeding, full determinism, leader-first, evaluation output, arguments from dataclasses."""
