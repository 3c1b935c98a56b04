"""trn1n: trn1 with twice the bandwidth between chips and to the network; the cores are the same.

Source: about-neuron/arch/neuron-hardware/trn1-arch.rst of the public AWS Neuron documentation.
"""

from dataclasses import replace

from neuronxcc.targets import trn1
from neuronxcc.targets.spec import Instance, Link

TARGET = replace(
    trn1.TARGET,
    name="trn1n",
    aliases=(),
    # The page gives trn1n twice the chip-to-chip bandwidth of trn1.
    link=Link(name="NeuronLink-v2", chip_gbps=768, topology="2D torus 4x4"),
    instances=(
        Instance("trn1n.32xlarge", chips=16, vcpus=128, host_memory_gib=512, network_gbit=1600),
    ),
)
