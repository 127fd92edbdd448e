"""What `sweep.py` draws."""
