"""One module per component, of the same name: the flow of the task."""
