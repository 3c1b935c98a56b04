"""NeuronCore-v2: the core of Trainium (trn1, trn1n) and Inferentia2 (inf2).

Sources, all public AWS Neuron documentation:
[core] about-neuron/arch/neuron-hardware/neuron-core-v2.rst
[nki]  nki/guides/architecture/trainium_inferentia2_arch.rst
[dma]  the NKI DMA bandwidth guide
[types] about-neuron/arch/neuron-features/data-types.rst
"""

from neuronxcc.targets.engines import Engine
from neuronxcc.targets.spec import KIB, EngineSpec, NeuronCore, OnChipMemory, table

CORE = NeuronCore(
    version="v2",
    isa=2,
    wide_products=True,  # the error page EVRF035 names 32-bit integers for later cores only
    tensor=EngineSpec(
        name=Engine.TENSOR,
        clock_ghz=2.8,  # [nki]
        elements_per_cycle=table(default=2 * 128),  # [nki]
        output_elements_per_cycle=128,  # [nki]
        # The sources disagree: [core] "over 90", [nki] 92, and the chip's 190 over two cores is 95.
        # 92 is chosen: it is the only one stated as a number for one engine, and 2 x 128 x 128 x
        # 2.8 GHz = 91.8 confirms it. FP8 runs at the same rate, FP32 in four passes [nki].
        peak_tflops=table(bfloat16=92, float16=92, tfloat32=92, float8=92, float32=23),
    ),
    vector=EngineSpec(
        name=Engine.VECTOR,
        clock_ghz=1.12,  # [nki]
        elements_per_cycle=table(default=128),  # [nki]
        output_elements_per_cycle=128,
        peak_tflops=table(float32=2.3),  # [core]
    ),
    scalar=EngineSpec(
        name=Engine.SCALAR,
        clock_ghz=1.4,  # [nki]
        elements_per_cycle=table(default=128),  # [nki]
        output_elements_per_cycle=128,
        peak_tflops=table(float32=2.9),  # [core]
    ),
    gpsimd=EngineSpec(
        name=Engine.GPSIMD,
        clock_ghz=1.4,  # [nki]
        # 8 processors x 512 bits [core]: 128 elements of 32 bits.
        elements_per_cycle=table(default=128),
        output_elements_per_cycle=128,
        peak_tflops=table(),
    ),
    gpsimd_processors=8,  # [core]
    gpsimd_vector_bits=512,  # [core]
    sbuf=OnChipMemory(partitions=128, bytes_per_partition=192 * KIB),  # [nki] 24 MiB
    psum=OnChipMemory(partitions=128, bytes_per_partition=16 * KIB, banks=8),  # [nki] 2 MiB
    dma_engines=16,  # [dma]
    dma_engine_gbps=17,  # [dma] 17 B/ns, 272 GB/s for the core
)

# [core] for the engines' types and [types] for the three configurable 8-bit formats (cFP8).
# uint32 and uint16 are the shift and index types of the engines [nki].
DTYPES = frozenset(
    {
        "bool",
        "float32",
        "tfloat32",
        "bfloat16",
        "float16",
        "float8_e5m2",
        "float8_e4m3",
        "float8_e3m4",
        "int8",
        "int16",
        "int32",
        "uint8",
        "uint16",
        "uint32",
    }
)
