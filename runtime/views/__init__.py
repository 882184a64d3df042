"""Views: events, progress, history and listings, for those who look at runs."""
