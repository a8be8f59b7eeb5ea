"""Stations whose work is a DataFrame transform."""
