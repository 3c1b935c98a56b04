"""Streams, events and waiting."""

import threading

import pytest
import torch

from torch_neuronx import neuron


def test_a_new_stream_is_not_the_default() -> None:
    stream = neuron.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream != neuron.default_stream()
    assert stream.device == torch.device("neuron:0")
    assert neuron.Stream("neuron:1").device == torch.device("neuron:1")
    assert torch.Stream(device="neuron:1").device == torch.device("neuron:1")


def test_streams_compare_by_identity() -> None:
    stream = neuron.Stream()
    with neuron.stream(stream):
        assert neuron.current_stream() == stream
        assert hash(neuron.current_stream()) == hash(stream)
    assert neuron.current_stream() == neuron.default_stream()
    assert neuron.current_stream(0) != neuron.current_stream(1)


def test_stream_context_selects_device_and_restores_both() -> None:
    stream = neuron.Stream("neuron:1")
    with neuron.stream(stream):
        assert neuron.current_device() == 1
        assert neuron.current_stream() == stream
        assert neuron.current_stream(0) == neuron.default_stream(0)
    assert neuron.current_device() == 0
    assert neuron.current_stream(1) == neuron.default_stream(1)


def test_stream_context_restores_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), neuron.stream(neuron.Stream()):
        raise ZeroDivisionError
    assert neuron.current_stream() == neuron.default_stream()


def test_torch_stream_is_a_context() -> None:
    stream = torch.Stream(device="neuron:1")
    with stream:
        assert torch.accelerator.current_stream() == stream
        assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == 0


def test_set_stream() -> None:
    stream = neuron.Stream()
    neuron.set_stream(stream)
    try:
        assert torch.accelerator.current_stream() == stream
    finally:
        neuron.set_stream(neuron.default_stream())
    neuron.set_stream(None)
    assert neuron.current_stream() == neuron.default_stream()


def test_streams_are_selected_per_thread() -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.append(neuron.current_stream() == neuron.default_stream())

    with neuron.stream(neuron.Stream()):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [True]


def test_priorities() -> None:
    low, high = neuron.Stream(priority=0), neuron.Stream(priority=-1)
    assert low != high


def test_work_on_a_stream_gives_the_same_values() -> None:
    x = torch.arange(1000.0, device="neuron")
    stream = neuron.Stream()
    stream.wait_stream(neuron.current_stream())
    with neuron.stream(stream):
        y = (x * 2).cumsum(0)
    neuron.current_stream().wait_stream(stream)
    torch.testing.assert_close(y.cpu(), (torch.arange(1000.0) * 2).cumsum(0))
    assert stream.query()
    stream.synchronize()


def test_event_life() -> None:
    event = neuron.Event()
    assert event.query()  # an event that was never recorded is complete
    event.record()
    event.wait()
    event.synchronize()
    assert event.query()
    stream = neuron.Stream()
    recorded = stream.record_event()
    assert isinstance(recorded, torch.Event)
    neuron.current_stream().wait_event(recorded)
    assert recorded.query()


def test_elapsed_time_grows_with_the_work() -> None:
    start, middle, end = (neuron.Event(enable_timing=True) for _ in range(3))
    x = torch.rand(300, 300, device="neuron")
    start.record()
    x @ x
    middle.record()
    for _ in range(20):
        x @ x
    end.record()
    end.synchronize()
    short, long = start.elapsed_time(middle), start.elapsed_time(end)
    assert 0 < short < long
    assert long == pytest.approx(short + middle.elapsed_time(end), rel=1e-3, abs=1e-3)


def test_elapsed_time_between_cores_is_refused() -> None:
    events = []
    for core in (0, 1):
        with neuron.device(core):
            events.append(neuron.Event(enable_timing=True))
            events[-1].record()
    text = "they were recorded on neuron:0 and neuron:1"
    with pytest.raises(RuntimeError, match=text):
        events[0].elapsed_time(events[1])


def test_elapsed_time_needs_timing_and_recording() -> None:
    plain, timed = neuron.Event(), neuron.Event(enable_timing=True)
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        timed.elapsed_time(neuron.Event(enable_timing=True))
    plain.record()
    timed.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing=True"):
        timed.elapsed_time(plain)


def test_event_of_another_device() -> None:
    event = torch.Event(device="neuron:1")
    event.record(neuron.current_stream(1))
    neuron.current_stream(0).wait_event(event)
    assert event.query()


def test_record_stream_keeps_memory_until_the_stream_is_done() -> None:
    stream = neuron.Stream()
    x = torch.full((1 << 20,), 7.0, device="neuron")
    stream.wait_stream(neuron.current_stream())
    with neuron.stream(stream):
        y = x + 1
    x.record_stream(stream)
    del x
    torch.full((1 << 20,), 1.0, device="neuron")
    neuron.current_stream().wait_stream(stream)
    assert y.eq(8).all()


def test_synchronize_takes_every_kind_of_device() -> None:
    for device in (None, 1, "neuron:1", torch.device("neuron:1")):
        neuron.synchronize(device)
    torch.accelerator.synchronize(1)
