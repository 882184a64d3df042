"""Step execution: attempts, the gate that applies policies, and outcomes."""
