"""Steps: from what a workflow asks for, over attempts, to the outcome in the journal."""
