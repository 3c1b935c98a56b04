"""Programs that show the device at work; run one with `python -m examples.<name>`."""
