"""Order: the runs of one key come one after the other, and who is next."""
