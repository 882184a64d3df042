"""Records: everything that is stored of runs, the tables and their keys."""
