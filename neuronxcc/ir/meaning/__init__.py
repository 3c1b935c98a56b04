"""What every operator means, in NumPy: slow and obvious, the measure of everything fast."""
