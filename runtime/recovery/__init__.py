"""Recovery: start-up after a crash, internal errors, damaged records, and retention."""
