"""Children: runs that a run starts and waits for."""
