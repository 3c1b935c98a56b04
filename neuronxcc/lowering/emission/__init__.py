"""Stages 4 and 7: units become drafts of steps, and drafts the steps of a program."""
