"""How long a PyTorch program takes on hardware: recorded on fake tensors, timed by the model.

`session.estimate` runs a program under the planning mode, which has shapes and no memory;
`recorder` notes every operator; `segments` makes tensor IR of what lies between two collectives,
and has it timed; `schedule` puts these times, collectives and the host on a clock; `result` is what
the user gets. See docs/estimate.md.
"""
