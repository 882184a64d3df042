"""Operations on runs: cancel, pause, resume, redrive, forget, release."""
