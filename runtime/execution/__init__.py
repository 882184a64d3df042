"""Execution: the context of a workflow, the driver, gather, and compensation."""
