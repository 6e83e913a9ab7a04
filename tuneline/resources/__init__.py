"""What a run needs in Google Cloud: what it is called, whose it is, how it comes to be and goes."""
