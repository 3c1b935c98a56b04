"""The ``neuron`` backend of ``torch.distributed``: collectives between NeuronCores.

Registering the device registers it (:mod:`torch_neuronx.distributed.group`), so that
``torch.distributed.init_process_group()`` finds it by the device's name. ``docs/distributed.md``
says how it works.
"""
