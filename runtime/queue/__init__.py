"""The queue of a key: admission, order, backpressure, delays, and the outbox of ended runs."""
