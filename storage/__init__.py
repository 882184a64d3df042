"""The store interface, its records, and the LMDB and in-memory stores."""
