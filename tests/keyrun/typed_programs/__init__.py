"""Programs that type checkers read. Nothing runs them."""
