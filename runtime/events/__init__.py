"""Events: their types, the emitter, subscriptions, and log lines."""
