"""Thin typed ports on Google Cloud's clients. No raw API exception leaves this package; no SDK is imported before it is used."""
