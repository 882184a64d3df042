"""Children: runs that a run starts and waits for, and cycle detection over keys."""
