"""What trains: RunSpec to a job, its metrics and its checkpoints."""
