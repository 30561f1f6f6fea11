"""Rows to batches: read and check, tokenise once, plan the order, deal to the workers."""
