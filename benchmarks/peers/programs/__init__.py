"""One program per peer, run by the peer's own interpreter; what they share needs only Python."""
