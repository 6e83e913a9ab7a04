"""What every layer stands on: errors, time, files, names, log. Imports nothing of ours."""
