"""trn3: Trainium3 chips, whose cores are NeuronCore-v4.

Sources, all public AWS Neuron documentation:
[chip] about-neuron/arch/neuron-hardware/trainium3.rst
[core] about-neuron/arch/neuron-hardware/neuron-core-v4.rst
[nki]  nki/guides/architecture/trainium3_arch.rst
[ec2]  about-neuron/arch/neuron-hardware/trn3-arch.rst
[dma]  the NKI DMA bandwidth guide
"""

from neuronxcc.targets import trn2
from neuronxcc.targets.engines import Engine
from neuronxcc.targets.spec import (
    GIB,
    KIB,
    EngineSpec,
    Instance,
    Link,
    NeuronCore,
    OnChipMemory,
    Target,
    table,
)

CORE = NeuronCore(
    version="v4",
    isa=4,
    wide_products=False,  # the compiler's error page EVRF035
    tensor=EngineSpec(
        name=Engine.TENSOR,
        clock_ghz=2.4,  # [nki]
        elements_per_cycle=table(default=2 * 128, mxfp8=8 * 128, mxfp4=8 * 128),  # [nki]
        output_elements_per_cycle=128,  # [nki]
        peak_tflops=table(  # [nki]
            bfloat16=79, float16=79, tfloat32=79, mxfp8=315, mxfp4=315, float32=20, sparse=315
        ),
    ),
    vector=EngineSpec(
        name=Engine.VECTOR,
        clock_ghz=1.2,  # [nki]
        elements_per_cycle=table(  # [nki]
            default=256,
            bfloat16=512,
            float16=512,
            float8_e4m3=512,
            float8_e4m3fn=512,
            float8_e5m2=512,
            float8_e3m4=512,
        ),
        output_elements_per_cycle=256,
        peak_tflops=table(float32=1.2),  # [core]
    ),
    scalar=EngineSpec(
        name=Engine.SCALAR,
        clock_ghz=1.2,  # [nki]
        elements_per_cycle=table(  # [nki]
            default=128,
            bfloat16=256,
            float16=256,
            float8_e4m3=256,
            float8_e4m3fn=256,
            float8_e5m2=256,
            float8_e3m4=256,
        ),
        output_elements_per_cycle=128,
        peak_tflops=table(float32=1.2),  # [core]
    ),
    gpsimd=EngineSpec(
        name=Engine.GPSIMD,
        clock_ghz=1.2,  # [nki]
        elements_per_cycle=table(default=128),  # [nki]
        output_elements_per_cycle=128,
        peak_tflops=table(),
    ),
    gpsimd_processors=8,  # [core]
    gpsimd_vector_bits=512,  # [core]
    sbuf=OnChipMemory(partitions=128, bytes_per_partition=256 * KIB),  # [nki] 32 MiB
    psum=OnChipMemory(partitions=128, bytes_per_partition=16 * KIB, banks=8),  # [nki] 2 MiB
    dma_engines=16,  # [nki] 128 for the eight cores
    dma_engine_gbps=33,  # [dma] 33 B/ns, 528 GB/s for the core
)

TARGET = Target(
    name="trn3",
    aliases=("gen4",),
    chip_name="Trainium3",
    capability=(4, 0),
    core=CORE,
    cores_per_chip=8,  # [chip]
    default_lnc=2,
    supported_lnc=(1, 2),
    hbm_bytes=144 * GIB,  # [chip] four stacks of 36 GiB [nki]
    # [chip] says 4.9 TB/s, [nki] 4.7; 313.6 TB/s for 64 chips in [ec2] confirms 4.9.
    hbm_gbps=4900,
    dma_gbps=4900,  # [chip]
    peak_tflops=table(  # [chip]; plain FP8 is in the comparison table of the same page
        bfloat16=671,
        float16=671,
        tfloat32=671,
        float8=2517,
        mxfp8=2517,
        mxfp4=2517,
        float32=183,
        sparse=2517,
    ),
    # [chip] says 16, [nki] 20. The chip's own page is followed.
    cc_cores=16,
    link=Link(name="NeuronLink-v4", chip_gbps=2560, topology="switched all-to-all"),  # [chip]
    # [core] for MX, and the compiler's error pages EVRF051 and EVRF052 for OCP's e4m3fn beside the
    # older e4m3.
    dtypes=trn2.TARGET.dtypes | {"float8_e4m3fn", "float4_e2m1fn", "mxfp8", "mxfp4"},
    native_int64=True,
    float8_e4m3_max=448.0,
    # Instance names are not published, only UltraServers. A Gen1 UltraServer is four servers of 16
    # chips [ec2]; one server is what one emulated machine can grow to, and
    # its host and network are a quarter of what is published for the whole.
    max_chips=16,
    instances=(
        Instance("trn3 Gen1 server", chips=16, vcpus=192, host_memory_gib=2048, network_gbit=3200),
    ),
)
