"""The same work on Keyrun and on what people use today, on one machine in one run."""
