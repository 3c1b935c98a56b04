"""The messages of XLA's `HloModuleProto`, as a table of field numbers.

Source of the numbers: `xla/service/hlo.proto` and `xla/xla_data.proto` of OpenXLA (2026). Only what
decides a program's meaning, names it or says where it was written is listed; protobuf skips the
rest. Message classes are made from the table when they are first needed, so nothing is generated
ahead of time and the definition here is the only one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "neuronxcc.hlo"

# Message -> fields as "name:number:type"; "*" repeats, "@" is a message of this table.
_MESSAGES: dict[str, str] = {
    "Layout": "minor_to_major:1:*int64 tiles:6:*@Tile element_size_in_bits:7:int64",
    "Tile": "dimensions:1:*int64",
    "Shape": (
        "element_type:2:int32 dimensions:3:*int64 tuple_shapes:4:*@Shape layout:5:@Layout "
        "is_dynamic_dimension:6:*bool"
    ),
    "ProgramShape": "parameters:1:*@Shape result:2:@Shape parameter_names:3:*string",
    "Metadata": (
        "op_type:1:string op_name:2:string source_file:3:string source_line:4:int32 "
        "stack_frame_id:15:int32"
    ),
    "Literal": (
        "shape:1:@Shape preds:2:*bool u8s:3:bytes s32s:4:*int32 s64s:5:*int64 u32s:6:*uint32 "
        "u64s:7:*uint64 f32s:8:*float f64s:9:*double tuple_literals:10:*@Literal f16s:11:bytes "
        "c64s:12:*float bf16s:13:bytes s8s:15:bytes u16s:16:bytes s16s:17:bytes c128s:18:*double "
        "f8e5m2s:19:bytes f8e4m3fns:20:bytes s4s:21:bytes u4s:22:bytes f8e4m3s:28:bytes "
        "f8e8m0fnus:33:bytes"
    ),
    "WindowDimension": (
        "size:1:int64 stride:2:int64 padding_low:3:int64 padding_high:4:int64 "
        "window_dilation:5:int64 base_dilation:6:int64 window_reversal:7:bool"
    ),
    "Window": "dimensions:1:*@WindowDimension",
    "Slice": "start:1:int64 limit:2:int64 stride:3:int64",
    "PaddingDimension": "low:1:int64 high:2:int64 interior:3:int64",
    "Padding": "dimensions:1:*@PaddingDimension",
    "Gather": (
        "offset_dims:1:*int64 collapsed_slice_dims:2:*int64 start_index_map:3:*int64 "
        "index_vector_dim:4:int64 operand_batching_dims:5:*int64 "
        "start_indices_batching_dims:6:*int64"
    ),
    "Scatter": (
        "update_window_dims:1:*int64 inserted_window_dims:2:*int64 "
        "scatter_dims_to_operand_dims:3:*int64 index_vector_dim:4:int64 "
        "input_batching_dims:5:*int64 scatter_indices_batching_dims:6:*int64"
    ),
    "Convolution": (
        "kernel_input_feature_dimension:3:int64 kernel_output_feature_dimension:4:int64 "
        "kernel_spatial_dimensions:6:*int64 input_batch_dimension:7:int64 "
        "input_feature_dimension:8:int64 output_batch_dimension:9:int64 "
        "output_feature_dimension:10:int64 input_spatial_dimensions:11:*int64 "
        "output_spatial_dimensions:12:*int64"
    ),
    "Dot": (
        "lhs_contracting_dimensions:1:*int64 rhs_contracting_dimensions:2:*int64 "
        "lhs_batch_dimensions:3:*int64 rhs_batch_dimensions:4:*int64"
    ),
    "ReplicaGroup": "replica_ids:1:*int64",
    "IotaGroups": (
        "num_replica_groups:1:int64 num_devices_per_group:2:int64 iota_reshape_dims:3:*int64 "
        "iota_transpose_perm:4:*int32"
    ),
    "DeviceList": "replica_groups:1:*@ReplicaGroup iota_replica_group_list:2:@IotaGroups",
    "SourceTarget": "source:1:int64 target:2:int64",
    "Sharding": "type:1:int32",
    "Instruction": (
        "name:1:string opcode:2:string shape:3:@Shape metadata:7:@Metadata literal:8:@Literal "
        "parameter_number:9:int64 fusion_kind:11:string tuple_index:13:int64 dimensions:14:*int64 "
        "window:15:@Window convolution_dimension_numbers:16:@Convolution "
        "slice_dimensions:17:*@Slice exponent_bits:18:int32 mantissa_bits:19:int32 "
        "dynamic_slice_sizes:20:*int64 padding_config:21:@Padding distribution:23:int32 "
        "epsilon:24:float feature_index:25:int64 channel_id:26:int64 custom_call_target:28:string "
        "dot_dimension_numbers:30:@Dot gather_dimension_numbers:33:@Gather "
        "gather_slice_sizes:34:*int64 id:35:int64 operand_ids:36:*int64 "
        "called_computation_ids:38:*int64 sharding:40:@Sharding backend_config:43:bytes "
        "scatter_dimension_numbers:48:@Scatter replica_groups:49:*@ReplicaGroup "
        "feature_group_count:50:int64 source_target_pairs:52:*@SourceTarget "
        "batch_group_count:58:int64 is_stable:60:bool comparison_direction:63:string "
        "delta:66:int64 unique_indices:69:bool rng_algorithm:70:int32 "
        "use_global_device_ids:71:bool comparison_type:72:string k:81:int64 largest:85:bool "
        "dot_sparsity:86:*@Unread collective_device_list:87:@DeviceList is_composite:89:bool"
    ),
    # Told from absent, not read.
    "Unread": "",
    "Computation": (
        "name:1:string instructions:2:*@Instruction program_shape:4:@ProgramShape id:5:int64 "
        "root_id:6:int64"
    ),
    "AliasEntry": (
        "output_shape_index:1:*int64 parameter_number:2:int64 parameter_shape_index:3:*int64 "
        "kind:4:int32"
    ),
    "Aliases": "entries:1:*@AliasEntry",
    "FileLocation": "file_name_id:1:int32 function_name_id:2:int32 line:3:int32 column:4:int32",
    "StackFrame": "file_location_id:1:int32 parent_frame_id:2:int32",
    "StackFrames": (
        "file_names:1:*string function_names:2:*string file_locations:3:*@FileLocation "
        "stack_frames:4:*@StackFrame"
    ),
    "Module": (
        "name:1:string entry_computation_name:2:string computations:3:*@Computation "
        "host_program_shape:4:@ProgramShape entry_computation_id:6:int64 "
        "input_output_alias:8:@Aliases is_dynamic:11:bool device_assignment:15:@Devices "
        "stack_frame_index:17:@StackFrames"
    ),
    "Devices": "replica_count:1:int32 computation_count:2:int32",
    # What XLA writes to disk when it is asked for a dump: the module is field 1.
    "Dump": "hlo_module:1:@Module",
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("int32", "int64", "uint32", "uint64", "bool", "string", "bytes", "float", "double")
}


@cache
def message(name: str) -> Any:
    """The protobuf class of a message of the table."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="neuronxcc/hlo.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field in fields.split():
            _add_field(described, *field.split(":"))
    pool = descriptor_pool.DescriptorPool()  # our own: XLA's may be loaded in this process too
    pool.Add(file)
    return pool


def _add_field(described: Any, name: str, number: str, type_: str) -> None:
    repeated = type_.startswith("*")
    type_ = type_.removeprefix("*")
    field = described.field.add(
        name=name,
        number=int(number),
        label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
    )
    if type_.startswith("@"):
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_[1:]}"
    else:
        field.type = _TYPES[type_]
