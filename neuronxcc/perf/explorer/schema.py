"""The tables of Neuron Explorer that a prediction fills: names, types and which fields may be null.

From the public reference of schema 7.4.0 (profile-schema-reference.rst). Each field is its name and
its type; ``?`` marks what may be null. Times are nanoseconds where the name ends in ``_ts``, or is
``timestamp``.
"""

from __future__ import annotations

from typing import Final

from neuronxcc.tables import Field, fields_of

__all__ = ["NOT_MODELLED", "RECOMMENDATION", "SCHEMA"]

#: Categories of Warning, which are ours: what a prediction leaves out, and, before the name of a
#: rule, what would make the program faster.
NOT_MODELLED: Final = "not modelled"
RECOMMENDATION: Final = "recommendation: "

_TABLES: Final = {
    "Metadata": """
        profile_schema_version:str ntff_version:i32 num_physical_cores:i32 vnc_enabled:bool
        first_hw_timestamp:i64 last_hw_timestamp:i64 first_ts:str last_ts:str
        dma_ddr_bandwidth:f32 num_dma_engines_per_neuroncore:i32 hbm_ddr_bandwidth:f32
        tensor_engine_num_rows:i64 tensor_engine_num_cols:i64 tensor_engine_clock_freq:f32
        vector_engine_clock_freq:f32 vector_engine_num_channels:i64 scalar_engine_clock_freq:f32
        scalar_engine_num_channels:i64 gpsimd_engine_clock_freq:f32 gpsimd_engine_num_channels:i64
        neuroncore_clock_freq:f32 ticks_per_nanosec:i64 instance_type:str? compiler_version:str?
        profile_name:str? is_simulation:bool?
    """,
    "Instruction": """
        start_ts:i64 end_ts:i64 duration_ns:i64 engine:str pcore_idx:i64? opcode:str operands:str
        id:i64 pc:i64 bir_id:str evt_wait_time_ns:i64? nki_source_location:str?
        dma_trigger_start_ts:i64? dma_trigger_end_ts:i64? tensor_instruction_type:str?
        tensor_elements:i64? raw_flops:i64? adjusted_flops:i64? tensor_elements_transpose:i64?
        flops_transpose:i64? adjusted_flops_transpose:i64?
    """,
    "DmaPacketAggregated": """
        start_ts:i64 end_ts:i64 duration_ns:i64 id:i64 pcore_idx:i64? block_id:i32 queue_idx:i64
        queue_name:str queue_type:str? op:str variable:str read_bytes:i64 write_bytes:i64
        transfer_bytes:i64 throughput:f32 source:str dest:str semaphore_id:str
        read_sbuf_partitions:str read_num_sbuf_partitions:i32 read_shape:str read_offset:str
        read_steps:str write_sbuf_partitions:str write_num_sbuf_partitions:i32 write_shape:str
        write_offset:str write_steps:str is_transpose_mode:bool?
    """,
    "DmaPacket": """
        start_ts:i64 end_ts:i64 duration_ns:i64 pcore_idx:i64? id:i64 packet_idx:i32
        packet_aggregation_id:i64 engine_idx:i64? read_bytes:i64 write_bytes:i64
        transfer_bytes:i64 throughput:f32 queue_type:str variable:str? queue_name:str?
        queue_idx:i64? crc:i64
    """,
    "DmaQueuesInfo": """
        name:str type:str pcore_idx:i64 idx:i64 engine_idx:i64 axi_port:i64 dram_channel:i64
    """,
    "DmaUsage": """
        timestamp:i64 current_throughput:f32 total_transfer_bytes:i64 pcore_idx:i64?
    """,
    "PendingDma": "timestamp:i64 value:i32 pcore_idx:i64?",
    "ActiveTime": "start_ts:i64 end_ts:i64 engine:str pcore_idx:i64 duration_ns:i64",
    "OpcodeSummary": """
        engine:str opcode:str instruction_count:i64 instruction_time_ns:i64 active_time_ns:i64
        active_time_percent:f32
    """,
    "Flow": """
        in_id:i64 out_id:i64 in_table:str out_table:str dependency_type:str? gap_time:i64?
    """,
    "SbufUsage": "timestamp:i64 avg_util_percent:f32? pcore_idx:i64?",
    "PsumUsage": "timestamp:i64 avg_util_percent:f32? pcore_idx:i64?",
    "Warning": "message:str category:str",
    "Summary": """
        total_time:f32? neuroncore_cycle_count:i64? model_flops:i64? hardware_flops:i64?
        transpose_flops:i64? adjusted_hardware_flops:i64? adjusted_transpose_flops:i64?
        mm_arithmetic_intensity:f32? peak_flops_bandwidth_ratio:f32? event_count:i64?
        total_row_count:i64? dma_active_cycles:i64? dma_active_time:f32?
        dma_active_time_percent:f32? dma_transfer_average_bytes:f32? dma_packet_time:f32?
        dma_transfer_time:f32? dma_transfer_count:i64? dma_transfer_total_bytes:i64?
        dma_queue_count:i64? static_dma_packet_count:i64? static_dma_size:i64?
        static_dma_packet_percent:f32? static_dma_size_percent:f32? static_dma_active_time:f32?
        static_dma_active_time_percent:f32? dynamic_dma_packet_percent:f32?
        dynamic_dma_size_percent:f32? dynamic_dma_active_time_percent:f32?
        software_dynamic_dma_active_time:f32? software_dynamic_dma_active_time_percent:f32?
        software_dynamic_dma_packet_count:i64? software_dynamic_dma_size:i64?
        software_dynamic_dma_packet_percent:f32? software_dynamic_dma_size_percent:f32?
        hardware_dynamic_dma_active_time:f32? hardware_dynamic_dma_active_time_percent:f32?
        hardware_dynamic_dma_packet_count:i64? hardware_dynamic_dma_size:i64?
        hardware_dynamic_dma_packet_percent:f32? hardware_dynamic_dma_size_percent:f32?
        mbu_estimated_percent:f32? hbm_write_bytes:i64? hbm_read_bytes:i64?
        spill_save_bytes:i64? spill_reload_bytes:i64?
        tensor_engine_instruction_time:f32? tensor_engine_active_time:f32?
        tensor_engine_active_time_percent:f32? tensor_engine_instruction_count:i64?
        matmul_instruction_count:i64? mfu_inst_estimated_percent:f32?
        mfu_inst_max_achievable_estimated_percent:f32? hfu_estimated_percent:f32?
        vector_engine_instruction_time:f32? vector_engine_active_time:f32?
        vector_engine_active_time_percent:f32? vector_engine_instruction_count:i64?
        scalar_engine_instruction_time:f32? scalar_engine_active_time:f32?
        scalar_engine_active_time_percent:f32? scalar_engine_instruction_count:i64?
        activate_instruction_time:f32? activate_instruction_count:i64?
        sync_engine_instruction_time:f32? sync_engine_active_time:f32?
        sync_engine_active_time_percent:f32? sync_engine_instruction_count:i64?
        gpsimd_engine_instruction_time:f32? gpsimd_engine_active_time:f32?
        gpsimd_engine_active_time_percent:f32? gpsimd_engine_instruction_count:i64?
        total_exec_time:f32? total_active_time:f32? total_active_time_percent:f32?
    """,
}


#: Fields by table. Fields of the reference that are missing here would always be null.
SCHEMA: Final[dict[str, tuple[Field, ...]]] = {
    name: fields_of(text) for name, text in _TABLES.items()
}
