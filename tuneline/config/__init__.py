"""What a run is made of: its parameters (spec) and where its things lie (store)."""
