"""How long a graph of tensor IR takes, without a program for the device: by bytes and flops.

Every node has an engine, and a rate by its class (`rates`); nodes that follow each other without
memory in between are a section (`sections`); a section takes as long as what is busiest in it. What
lies above graphs has a table each: collectives between cores (`collectives`), and the host
(`host`). See docs/estimate.md.
"""

from neuronxcc.perf.graphs.machine import Machine
from neuronxcc.perf.graphs.parameters import GRAPH_PARAMETERS, GraphParameters
from neuronxcc.perf.graphs.rates import NodeCost, cost_of
from neuronxcc.perf.graphs.sections import (
    BY_BOUNDS,
    SIMULATED,
    Section,
    cost_section,
    sections_of,
)

__all__ = [
    "BY_BOUNDS",
    "GRAPH_PARAMETERS",
    "SIMULATED",
    "GraphParameters",
    "Machine",
    "NodeCost",
    "Section",
    "cost_of",
    "cost_section",
    "sections_of",
]
