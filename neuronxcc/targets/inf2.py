"""inf2: EC2 Inf2 instances with Inferentia2 chips.

Sources, all public AWS Neuron documentation:
[chip] about-neuron/arch/neuron-hardware/inferentia2.rst
[ec2]  about-neuron/arch/neuron-hardware/inf2-arch.rst
"""

from neuronxcc.targets import neuroncore_v2
from neuronxcc.targets.spec import GIB, Instance, Link, Target, table

TARGET = Target(
    name="inf2",
    aliases=(),
    chip_name="Inferentia2",
    capability=(2, 0),
    core=neuroncore_v2.CORE,
    cores_per_chip=2,  # [chip]
    default_lnc=1,
    supported_lnc=(1,),
    hbm_bytes=32 * GIB,  # [chip]
    # [chip] says 820 GiB/s; [ec2] 9.84 TB/s for twelve chips, which is 820 decimal GB/s each.
    hbm_gbps=820,
    dma_gbps=1000,  # [chip]
    peak_tflops=table(bfloat16=190, float16=190, tfloat32=190, float8=190, float32=47.5, int8=380),
    # Not published for Inferentia2 on its own; the chip has the DMA and NeuronLink generation of
    # Trainium, whose number this is.
    cc_cores=6,
    link=Link(name="NeuronLink-v2", chip_gbps=192, topology="ring"),  # [ec2]
    dtypes=neuroncore_v2.DTYPES,
    native_int64=False,
    float8_e4m3_max=240.0,
    max_chips=12,
    instances=(  # [ec2]
        Instance("inf2.xlarge", chips=1, vcpus=4, host_memory_gib=16),
        Instance("inf2.8xlarge", chips=1, vcpus=32, host_memory_gib=128),
        Instance("inf2.24xlarge", chips=6, vcpus=96, host_memory_gib=384),
        Instance("inf2.48xlarge", chips=12, vcpus=192, host_memory_gib=768),
    ),
)
