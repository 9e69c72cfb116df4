"""The recorder as a callback of other trainers: one module each, which imports that trainer's library."""
