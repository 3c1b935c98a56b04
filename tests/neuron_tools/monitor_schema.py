"""The documents of neuron-monitor as a JSON schema, from its guide."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
PERCENT: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 100}
TEXT: Final[Schema] = {"type": "string"}
CLOCK: Final[Schema] = {"enum": ["host", "model"]}


def obj(**properties: Schema) -> Schema:
    """An object with exactly these keys."""
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip


def numbered(value: Schema) -> Schema:
    return {"type": "object", "patternProperties": {r"^\d+$": value}, "additionalProperties": False}


def group(**properties: Schema) -> Schema:
    return obj(period=NUMBER, **properties, error=TEXT)


def some(**properties: Schema) -> Schema:
    """An object with some of these keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


_CPU = obj(
    user=PERCENT, nice=PERCENT, system=PERCENT, idle=PERCENT, io_wait=PERCENT, irq=PERCENT,
    soft_irq=PERCENT,
)  # fmt: skip
_HOST = obj(application_memory=COUNT, constants=COUNT, dma_buffers=COUNT, tensors=COUNT)
_CORE = obj(
    constants=COUNT, model_code=COUNT, model_shared_scratchpad=COUNT, runtime_memory=COUNT,
    tensors=COUNT,
)  # fmt: skip
_PERCENTILES = {"anyOf": [
    {"type": "null"},
    obj(p0=NUMBER, p1=NUMBER, p25=NUMBER, p50=NUMBER, p75=NUMBER, p99=NUMBER, p100=NUMBER),
]}  # fmt: skip
_MODEL = obj(
    name=TEXT, uuid={"type": "string", "pattern": "^[0-9a-f]{32}$"}, model_id=COUNT,
    is_running={"type": "boolean"},
    subgraphs=obj(sg_00=obj(
        memory_used_bytes=obj(
            host=COUNT, neuron_device=COUNT,
            usage_breakdown=obj(
                host=_HOST,
                neuron_device=obj(
                    constants=COUNT, model_code=COUNT, runtime_memory=COUNT, tensors=COUNT
                ),
            ),
        ),
        neuroncore_index=COUNT, neuron_device_index=COUNT,
    )),
)  # fmt: skip
_REPORT = some(
    neuroncore_counters=group(neuroncores_in_use=numbered({
        "type": "object",
        "properties": {
            "neuroncore_utilization": PERCENT, "flops": COUNT,
            "v3d": {"type": "object", "patternProperties": {
                r"^nc_v3\.\d+$": obj(neuroncore_utilization=PERCENT)
            }, "additionalProperties": False},
        },
        "required": ["neuroncore_utilization", "flops"], "additionalProperties": False,
    })),
    execution_stats=group(
        error_summary=obj(
            generic=COUNT, numerical=COUNT, transient=COUNT, model=COUNT, runtime=COUNT,
            hardware=COUNT,
        ),
        execution_summary=obj(
            completed=COUNT, completed_with_err=COUNT, completed_with_num_err=COUNT,
            timed_out=COUNT, incorrect_input=COUNT, failed_to_queue=COUNT,
        ),
        latency_stats=obj(total_latency=_PERCENTILES, device_latency=_PERCENTILES),
    ),
    memory_used=group(
        neuron_runtime_used_bytes=obj(
            host=COUNT, neuron_device=COUNT,
            usage_breakdown=obj(host=_HOST, neuroncore_memory_usage=numbered(_CORE)),
        ),
        loaded_models={"type": "array", "items": _MODEL},
    ),
    neuron_runtime_vcpu_usage=group(vcpu_usage=obj(user=PERCENT, system=PERCENT)),
)  # fmt: skip
DOCUMENT: Final[Schema] = obj(
    neuron_runtime_data={"type": "array", "items": obj(
        pid=COUNT, address=TEXT, neuron_runtime_tag=TEXT, error=TEXT, report=_REPORT,
    )},
    system_data=some(
        neuron_hw_counters=group(neuron_devices={"type": "array", "items": obj(
            neuron_device_index=COUNT, mem_ecc_corrected=COUNT, mem_ecc_uncorrected=COUNT,
            sram_ecc_uncorrected=COUNT, sram_ecc_corrected=COUNT,
        )}),
        vcpu_usage=group(
            average_usage=_CPU, usage_data=numbered(_CPU), context_switch_count=COUNT
        ),
        memory_info=group(
            memory_total_bytes=COUNT, memory_used_bytes=COUNT, swap_total_bytes=COUNT,
            swap_used_bytes=COUNT,
        ),
    ),
    instance_info=obj(
        instance_name=TEXT, instance_id=TEXT, instance_type=TEXT, instance_availability_zone=TEXT,
        instance_availability_zone_id=TEXT, instance_region=TEXT, ami_id=TEXT, subnet_id=TEXT,
        error=TEXT,
    ),
    neuron_hardware_info=obj(
        neuron_device_type=TEXT, neuron_device_version=TEXT, neuroncore_version=TEXT,
        neuron_device_count=COUNT, neuron_device_memory_size=COUNT,
        neuroncore_per_device_count=COUNT, logical_neuroncore_config=COUNT, error=TEXT,
    ),
    torchneuron=obj(
        emulated={"const": True}, clock=CLOCK, version=TEXT,
        clocks=numbered(obj(neuroncore_utilization=CLOCK, device_latency=CLOCK,
                            total_latency=CLOCK, flops=CLOCK, vcpu_usage=CLOCK)),
        predictions=numbered(obj(executions=COUNT, predicted=COUNT, unpredicted=COUNT)),
    ),
)  # fmt: skip
