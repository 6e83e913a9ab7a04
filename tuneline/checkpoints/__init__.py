"""Checkpoints read without trust and written whole: layouts, readers, the writer, conversion."""
