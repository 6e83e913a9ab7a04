"""One file a task: a typed signature, a docstring, one call into tuneline.tasks."""
