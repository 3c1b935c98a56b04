"""Every environment variable that this project reads, in one registry.

A file here is about one subject and declares its variables with their meaning. Who needs one reads
it there, at the time when the value counts:

    from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR

    TORCH_NEURONX_EXECUTOR.get()    # "native" or "reference"; a VariableError for anything else

`docs/environment.md` is made of the registry (`python -m torch_neuronx.env --markdown`), and
`tests/nodevice/test_environment.py` holds that nothing else reads the environment.
"""
