"""Kubernetes: connecting, rendering manifests, applying, waiting, deleting, logs, and what is wrong in one line."""
