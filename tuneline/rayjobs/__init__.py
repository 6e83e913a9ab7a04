"""Ray heads and the jobs on them."""
