"""trn2: EC2 Trn2 instances with Trainium2 chips, whose cores are NeuronCore-v3.

Sources, all public AWS Neuron documentation:
[chip] about-neuron/arch/neuron-hardware/trainium2.rst
[core] about-neuron/arch/neuron-hardware/neuron-core-v3.rst
[nki]  nki/guides/architecture/trainium2_arch.rst
[ec2]  about-neuron/arch/neuron-hardware/trn2-arch.rst
[dma]  the NKI DMA bandwidth guide
[cc]   explore/intranode-collective-comm.rst and internode-collective-comm.rst
"""

from neuronxcc.targets import neuroncore_v2
from neuronxcc.targets.engines import Engine
from neuronxcc.targets.spec import (
    GIB,
    KIB,
    MIB,
    CollectiveFacts,
    EngineSpec,
    Instance,
    Link,
    NeuronCore,
    OnChipMemory,
    Target,
    table,
)

CORE = NeuronCore(
    version="v3",
    isa=3,
    wide_products=False,  # the compiler's error page EVRF035
    tensor=EngineSpec(
        name=Engine.TENSOR,
        clock_ghz=2.4,  # [nki]
        # [nki]; FP8_E3 keeps the BF16 rate, only E4 and E5 are doubled.
        elements_per_cycle=table(default=2 * 128, float8_e4m3=4 * 128, float8_e5m2=4 * 128),
        output_elements_per_cycle=128,  # [nki]
        # [nki]; sparse is for structured sparsity of any of the 8 and 16-bit types.
        peak_tflops=table(
            bfloat16=79, float16=79, tfloat32=79, float8=158, float8_e3m4=79, float32=20, sparse=316
        ),
    ),
    vector=EngineSpec(
        name=Engine.VECTOR,
        clock_ghz=0.96,  # [nki]
        elements_per_cycle=table(default=256, bfloat16=512, float16=512),  # [nki]
        output_elements_per_cycle=256,
        peak_tflops=table(float32=1.0),  # [nki]
    ),
    scalar=EngineSpec(
        name=Engine.SCALAR,
        clock_ghz=1.2,  # [nki]
        elements_per_cycle=table(default=128),  # [nki]
        output_elements_per_cycle=128,
        peak_tflops=table(float32=1.2),  # [core]
    ),
    gpsimd=EngineSpec(
        name=Engine.GPSIMD,
        clock_ghz=1.2,  # [nki]
        # [nki] leaves the width of Trainium2 empty; the eight 512-bit processors are unchanged.
        elements_per_cycle=table(default=128),
        output_elements_per_cycle=128,
        peak_tflops=table(),
    ),
    gpsimd_processors=8,  # [core]
    gpsimd_vector_bits=512,  # [core]
    sbuf=OnChipMemory(partitions=128, bytes_per_partition=224 * KIB),  # [nki] 28 MiB
    psum=OnChipMemory(partitions=128, bytes_per_partition=16 * KIB, banks=8),  # [nki] 2 MiB
    dma_engines=16,  # [nki] 128 for the eight cores
    dma_engine_gbps=23,  # [dma] 23 B/ns, 368 GB/s for the core
)

TARGET = Target(
    name="trn2",
    aliases=("gen3",),
    chip_name="Trainium2",
    capability=(3, 0),
    core=CORE,
    cores_per_chip=8,  # [chip]
    default_lnc=2,  # [ec2] two physical cores form one logical core unless asked otherwise
    supported_lnc=(1, 2),
    hbm_bytes=96 * GIB,  # [chip] four stacks of 24 GiB [nki]
    # [chip] says 2.9 TB/s, [nki] 3 TB/s; 46.4 TB/s for 16 chips in [ec2] confirms 2.9.
    hbm_gbps=2900,
    dma_gbps=3500,  # [chip]
    # [chip]. 667 is eight times 83, not eight times the 79 of one engine: both are as published.
    peak_tflops=table(
        bfloat16=667, float16=667, tfloat32=667, float8=1299, float32=181, sparse=2563
    ),
    cc_cores=20,  # [chip], [nki]
    link=Link(name="NeuronLink-v3", chip_gbps=1280, topology="2D torus 4x4"),  # [chip], [ec2]
    # Integers of 64 bits are native from this generation on (compiler CLI, --native-int64).
    dtypes=neuroncore_v2.DTYPES | {"int64", "uint64"},
    native_int64=True,
    float8_e4m3_max=240.0,
    # One trn2.48xlarge: 64 logical cores at LNC=2. The UltraServer joins four such instances,
    # each with processes of its own.
    max_chips=16,
    instances=(  # [ec2]
        Instance("trn2.48xlarge", chips=16, vcpus=192, host_memory_gib=2048, network_gbit=3200),
        Instance("trn2u.48xlarge", chips=16, vcpus=192, host_memory_gib=2048, network_gbit=3200),
    ),
    # [cc]: mesh below 1 MB, RDH from 1 to 56 MB, KangaRing above; 1 to 2 us for a hop, of which the
    # larger is taken, and about 15 us between instances.
    collectives=CollectiveFacts(
        mesh_below_bytes=MIB, halving_below_bytes=56 * MIB, hop_us=2, network_hop_us=15
    ),
)
