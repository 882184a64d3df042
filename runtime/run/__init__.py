"""One run in memory: its journal, branches, waits and inbox, how it is loaded and how it ends."""
