"""trn1: EC2 Trn1 instances with Trainium chips.

Sources, all public AWS Neuron documentation:
[chip] about-neuron/arch/neuron-hardware/trainium.rst
[ec2]  about-neuron/arch/neuron-hardware/trn1-arch.rst
"""

from neuronxcc.targets import neuroncore_v2
from neuronxcc.targets.spec import GIB, Instance, Link, Target, table

TARGET = Target(
    name="trn1",
    # "gen2" is the generation of the core, which inf2 has as well; where it is documented, as a
    # value of NEURON_PLATFORM_TARGET_OVERRIDE, it stands beside trn1.
    aliases=("gen2",),
    chip_name="Trainium",
    capability=(2, 0),
    core=neuroncore_v2.CORE,
    cores_per_chip=2,  # [chip]
    default_lnc=1,  # logical cores of more than one physical core exist from Trainium2 on
    supported_lnc=(1,),
    hbm_bytes=32 * GIB,  # [chip]
    # [chip] and [ec2] print 820 GiB/s, the NKI guide 820 GB/s, and trainium2.rst 0.8 TB/s. Decimal
    # units are chosen, as every later generation is specified in them.
    hbm_gbps=820,
    dma_gbps=1000,  # [chip]
    # [chip]: 190, 47.5 and 380. trainium2.rst rounds its column for Trainium to 191 and 48.
    peak_tflops=table(bfloat16=190, float16=190, tfloat32=190, float8=190, float32=47.5, int8=380),
    cc_cores=6,  # trainium2.rst, comparison table
    # 384 GB/s: [ec2] and trainium2.rst, comparison table; the 2D torus: [ec2].
    link=Link(name="NeuronLink-v2", chip_gbps=384, topology="2D torus 4x4"),
    dtypes=neuroncore_v2.DTYPES,
    native_int64=False,
    float8_e4m3_max=240.0,
    max_chips=16,
    instances=(  # [ec2]
        Instance("trn1.2xlarge", chips=1, vcpus=8, host_memory_gib=32, network_gbit=25),
        Instance("trn1.32xlarge", chips=16, vcpus=128, host_memory_gib=512, network_gbit=800),
    ),
)
