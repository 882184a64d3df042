"""Groups: many runs that are submitted, awaited and cancelled as one."""
