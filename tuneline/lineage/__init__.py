"""Where a checkpoint came from and whether its bytes are what they were."""
