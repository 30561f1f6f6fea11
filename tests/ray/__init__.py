"""Whole runs on a local Ray, started as a user starts them: the program in its own process, against a real store."""
