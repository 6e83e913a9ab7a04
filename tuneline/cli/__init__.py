"""The `tuneline` command."""
