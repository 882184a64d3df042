"""CEL: parse conditions and compile them to closures with a budget of operations."""
