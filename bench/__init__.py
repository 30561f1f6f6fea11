"""Comparisons, each pair measured in one run on one machine: `make bench`."""
