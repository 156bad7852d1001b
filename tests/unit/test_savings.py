"""The savings model: invariants on random sites, and worked examples with figures that can be checked by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.audit import audit_graph
from auditor.devices import Bandwidth, Device, find_device
from auditor.engine.savings import (
    KernelCost,
    SiteCost,
    StepModel,
    amdahl_cap,
    estimate,
    site_memory,
    step_model,
    step_saving,
    time_after,
)
from auditor.engine.step_time import doubt
from auditor.graph.model import Coverage, Kernel, Op, OpGraph

GPU = Device(
    name="a GPU",
    kind="cuda",
    peak_gbps=2000.0,
    achievable=0.9,
    cache_bytes=40_000_000,
    min_kernel_us=2.0,
    launch_us=5.0,
)
UNKNOWN = Device(name="?", kind="cuda")
CPU = Device(
    name="a CPU", kind="cpu", peak_gbps=20.0, cache_gbps=100.0, cache_bytes=2**25, min_kernel_us=2.0, launch_us=3.0,
    curve=(Bandwidth(bytes=2**20, gbps=100.0), Bandwidth(bytes=2**27, gbps=20.0, fresh_ns_per_kb=300.0)),
    op_ns={"aten.exp": 0.3, "aten.tanh": 2.0, "aten.gelu": 0.8,
       "aten.gelu:tanh": 2.0, "aten.div": 0.1, "aten.sum": 0.05},
    overlap=0.6,
)  # fmt: skip
WARM_CPU = msgspec.structs.replace(CPU, curve=tuple(Bandwidth(bytes=p.bytes, gbps=p.gbps) for p in CPU.curve))
"""The same machine with an allocator that keeps freed memory: no page faults."""
DEVICES = {"gpu": GPU, "unknown": UNKNOWN, "cpu": CPU}
MB = 1_000_000


def kernel(op="aten.mul", dur_us=100.0, read=8 * MB, written=8 * MB, numel=2 * MB, dtype="f32"):
    return KernelCost(op, dur_us, read, written, numel, dtype)


def site(*kernels, family="elementwise", read=8 * MB, written=8 * MB, after=1):
    return SiteCost(family, kernels, read, written, after)


OPS = [
    *("aten.mul", "aten.add", "aten._to_copy", "aten.exp", "aten.tanh", "aten.gelu", "aten.mean", "aten._softmax"),
    *("aten.native_layer_norm", "aten.cat", "aten.mm", "aten.addmm", "aten.unheard_of"),
]
FAMILIES = ("elementwise", "reduction", "epilogue", "prologue", "horizontal", "algorithmic", "movement")
SIZES = st.integers(0, 2**34)
KERNELS = st.builds(
    KernelCost,
    op=st.sampled_from(OPS),
    dur_us=st.floats(0, 1e7),
    bytes_read=SIZES,
    bytes_written=SIZES,
    numel=SIZES,
    dtype=st.sampled_from(["f32", "bf16"]),
)
SITES = st.builds(
    SiteCost,
    family=st.sampled_from(FAMILIES),
    kernels=st.lists(KERNELS, min_size=1, max_size=8).map(tuple),
    bytes_read_fused=SIZES,
    bytes_written_fused=SIZES,
    kernels_after=st.integers(0, 4),
)
devices = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())


@devices
@given(any_site=SITES)
def test_never_less_than_nothing_nor_more_than_the_time_now(device, any_site):
    saved = estimate(any_site, device)
    assert 0.0 <= saved.likely_us <= saved.ideal_us <= any_site.now_us
    assert saved.formula
    assert "\n" not in saved.formula


@devices
@given(any_site=SITES, more_read=SIZES, more_written=SIZES)
def test_more_bytes_after_fusion_never_save_more(device, any_site, more_read, more_written):
    heavier = SiteCost(
        any_site.family,
        any_site.kernels,
        any_site.bytes_read_fused + more_read,
        any_site.bytes_written_fused + more_written,
        any_site.kernels_after,
    )
    lighter, heavier_saved = estimate(any_site, device), estimate(heavier, device)
    tiny = 1e-9 * any_site.now_us
    assert heavier_saved.likely_us <= lighter.likely_us + tiny
    assert heavier_saved.ideal_us <= lighter.ideal_us + tiny


@devices
@given(any_site=SITES)
def test_more_kernels_after_fusion_never_save_more(device, any_site):
    more = SiteCost(
        any_site.family,
        any_site.kernels,
        any_site.bytes_read_fused,
        any_site.bytes_written_fused,
        any_site.kernels_after + 1,
    )
    assert estimate(more, device).likely_us <= estimate(any_site, device).likely_us + 1e-9 * any_site.now_us


@devices
@given(any_site=SITES.filter(lambda s: s.family != "horizontal"))
def test_a_gemm_keeps_its_time(device, any_site):
    gemms = sum(k.dur_us for k in any_site.kernels if k.is_gemm)
    assert estimate(any_site, device).ideal_us <= any_site.now_us - gemms + 1e-9 * any_site.now_us
    assert time_after(any_site, site_memory(any_site, device)).us >= gemms


@devices
def test_without_timing_only_bytes_are_told(device):
    saved = estimate(site(kernel(dur_us=0.0), kernel(dur_us=0.0)), device)
    assert (saved.ideal_us, saved.likely_us) == (0.0, 0.0)
    assert "32.0 MB" in saved.formula
    assert "no timing" in saved.formula


def test_likely_uses_the_bandwidth_that_the_kernels_achieved():
    # GIVEN four kernels of 80 MB that each took 2 us + 80 MB at 800 GB/s on a device that gives 1800
    four = site(*(kernel(dur_us=102.0, read=40 * MB, written=40 * MB),) * 4, read=40 * MB, written=40 * MB)
    saved = estimate(four, GPU)
    # THEN the fused kernel takes as long as one of them, and at best 80 MB at 2000 GB/s
    assert saved.likely_us == pytest.approx(408 - 102)
    assert saved.ideal_us == pytest.approx(408 - 40)


def test_likely_never_beats_the_achievable_bandwidth():
    # GIVEN kernels of 80 MB that seem to run at 8000 GB/s (clock glitch), too large for the cache
    fast = site(*(kernel(dur_us=12.0, read=40 * MB, written=40 * MB),) * 20, read=80 * MB, written=80 * MB)
    # THEN the fused 160 MB take 160 MB / 1800 GB/s + 2 us
    assert estimate(fast, GPU).likely_us == pytest.approx(240 - (160 * MB / 1800e3 + 2))


def test_intermediates_in_the_cache_may_beat_the_memory_and_it_is_said():
    # GIVEN 16 MB kernels at 4000 GB/s: what one leaves, the next finds in the 40 MB cache
    cached = site(*(kernel(dur_us=6.0),) * 4)
    saved = estimate(cached, GPU)
    assert saved.likely_us == pytest.approx(24 - 6)
    assert "fit in the 40.0 MB cache" in saved.formula


def test_a_kernel_takes_at_least_the_minimum():
    tiny = site(*(kernel(dur_us=2.1, read=400, written=400, numel=100),) * 5, read=400, written=400)
    assert estimate(tiny, GPU).likely_us <= 5 * 2.1 - 2.0


def test_the_kernels_of_one_op_are_several_launches():
    """14 kernels of 3 µs in one op: each moves about what the op does, and one kernel would take 3 µs."""
    each = KernelCost("aten.unheard_of", 14 * 3.0, 8_000, 4_000, 1_000, "f32", launches=14)
    once = site(each, read=8_000, written=4_000)
    assert estimate(once, GPU).likely_us == pytest.approx(13 * 3.0)
    assert estimate(once, GPU).formula.startswith("14 kernels move")
    # AND where its passes remain, as those of a batch norm do, each of them takes its least time
    assert estimate(site(each, read=8_000, written=4_000, after=3), GPU).likely_us == pytest.approx(13 * 3.0 - 2 * 2.0)


def test_an_unknown_device_is_judged_by_the_trace_alone():
    four = site(*(kernel(dur_us=100.0, read=40 * MB, written=40 * MB),) * 4, read=40 * MB, written=40 * MB)
    saved = estimate(four, UNKNOWN)
    assert saved.likely_us == pytest.approx(300.0)
    assert saved.ideal_us == pytest.approx(300.0)


def test_what_a_transcendental_kernel_takes_beyond_its_bytes_stays():
    # GIVEN two streaming kernels of 100 us and a tanh that takes 180 for the same bytes
    big = {"read": 40 * MB, "written": 40 * MB}
    plain = site(*(kernel(dur_us=102.0, **big),) * 3, **big)
    heavy = site(kernel(dur_us=102.0, **big), kernel(dur_us=102.0, **big), kernel("aten.tanh", 182.0, **big), **big)
    # THEN fusing saves two passes in both, and the 80 us stay
    assert estimate(heavy, GPU).likely_us == pytest.approx(estimate(plain, GPU).likely_us)


def test_the_latency_of_a_reduction_stays():
    # GIVEN an add and a layer norm over next to nothing: 1.5 us of bytes and launch, 3.5 us for threads that wait
    small = {"read": 1000, "written": 1000, "numel": 250}
    norm = kernel("aten.native_layer_norm", 3.5, **small)
    add_norm = site(kernel("aten.add", 2.0, **small), norm, family="reduction", read=1000, written=1000)
    # THEN the fused kernel takes no less than the norm alone does
    assert estimate(add_norm, GPU).likely_us == pytest.approx(2.0, abs=0.01)


def test_a_reduction_is_discounted_where_nothing_is_calibrated():
    kernels = (kernel(dur_us=102.0, read=40 * MB, written=40 * MB),) * 4
    plain = estimate(site(*kernels, read=40 * MB, written=40 * MB), GPU)
    reduction = estimate(site(*kernels, family="reduction", read=40 * MB, written=40 * MB), GPU)
    assert plain.likely_us - reduction.likely_us == pytest.approx(0.2 * 100.0)
    assert reduction.ideal_us == plain.ideal_us


def test_an_epilogue_saves_its_own_passes_only():
    # GIVEN a GEMM that writes 40 MB, then bias and residual: fused, the residual is still read
    gemm = kernel("aten.mm", 500.0, read=20 * MB, written=40 * MB)
    add = kernel("aten.add", 68.0 + 2, read=80 * MB, written=40 * MB)
    epilogue = site(gemm, add, family="epilogue", read=20 * MB + 40 * MB, written=40 * MB)
    saved = estimate(epilogue, GPU)
    # THEN of the add's 120 MB the residual's 40 remain, and the GEMM keeps its 500 us
    assert saved.likely_us == pytest.approx(70 - 68 / 3)


def test_siblings_save_what_they_read_again_as_far_as_bytes_bind_them():
    # GIVEN three GEMMs that read the same 10 MB input and 30 MB of weights each, at 1500 of 1800 GB/s achievable
    decode = site(
        *(kernel("aten.mm", 28.0, read=40 * MB, written=2 * MB),) * 3,
        family="horizontal",
        read=100 * MB,
        written=6 * MB,
    )
    # AND the same bytes in GEMMs that compute for 100 times longer
    prefill = site(
        *(kernel("aten.mm", 2800.0, read=40 * MB, written=2 * MB),) * 3,
        family="horizontal",
        read=100 * MB,
        written=6 * MB,
    )
    removed, launches = 20 / 126, 2 * 2.0
    share = (126 * MB / 1800e3) / 84
    assert estimate(decode, GPU).likely_us == pytest.approx(share * removed * 84 + launches)
    # THEN prefill saves the same few microseconds, not 16 % of its time
    assert estimate(prefill, GPU).likely_us == pytest.approx(estimate(decode, GPU).likely_us)


# --- a calibrated CPU ----------------------------------------------------------------------------


def test_on_a_calibrated_machine_arithmetic_is_known():
    # GIVEN eager kernels whose tanh is as fast as its bytes (a vendor's), where the compiled one takes 2 ns an element
    big = {"read": 40 * MB, "written": 40 * MB, "numel": 10 * MB}
    kernels = (kernel(dur_us=4002.0, **big), kernel("aten.tanh", 4002.0, **big), kernel(dur_us=4002.0, **big))
    chain = site(*kernels, read=40 * MB, written=40 * MB)
    after = time_after(chain, site_memory(chain, CPU))
    # THEN 20 ms of tanh outweigh 4 ms of bytes, of which 60 % hide
    assert after.arithmetic_us == pytest.approx(20_000)
    assert after.us == pytest.approx(20_000 + 0.4 * 4000 + 2)
    # AND a fusion that loses claims nothing
    assert estimate(chain, CPU).likely_us == 0.0


def test_the_form_of_an_op_decides_its_cost():
    def gelu(op):
        one = site(kernel(dur_us=802.0), kernel(op, 802.0))
        return time_after(one, site_memory(one, CPU)).arithmetic_us

    assert gelu("aten.gelu") == pytest.approx(0.8 * 2000)
    assert gelu("aten.gelu:tanh") == pytest.approx(2.0 * 2000)


def test_a_slower_clock_than_at_calibration_shows_in_the_trace():
    # GIVEN an exp that took far longer than its bytes and the calibrated 0.3 ns
    def arithmetic(dtype):
        slow = site(kernel(dur_us=802.0), kernel("aten.exp", 4002.0, dtype=dtype), kernel(dur_us=802.0))
        return time_after(slow, site_memory(slow, CPU)).arithmetic_us

    assert arithmetic("bf16") == pytest.approx(4000 - 0.4 * 800)
    # THEN it counts, but not in float32: there the eager op is a vendor's and the compiled one is not
    assert arithmetic("f32") == pytest.approx(0.3 * 2000)


def test_a_long_chain_of_cheap_ops_is_bound_by_its_arithmetic():
    # GIVEN a CPU that adds in 0.1 ns, and 2M elements through chains of 2 and of 20 additions
    device = msgspec.structs.replace(WARM_CPU, op_ns={"cheap": 0.1, "aten.sum": 0.2}, overlap=1.0)
    chains = [site(*[kernel("aten.add", 1602.0)] * n) for n in (2, 20)]
    short, long = (time_after(chain, site_memory(chain, device)).us for chain in chains)
    # THEN the bytes (16 MB at 10 GB/s) hide what the short one computes, and the long one takes what it computes
    assert short == pytest.approx(1600 + 2)
    assert long == pytest.approx(20 * 0.1 * 2 * MB / 1e3 + 2)


def test_compiled_cpu_code_reads_the_result_of_a_gemm_back():
    # GIVEN a product that writes 8 MB and a bias added to it, on a CPU whose GEMMs are a library's
    gemm = kernel("aten.mm", 5000.0, read=8 * MB, written=8 * MB)
    bias = kernel("aten.add", 1000.0, read=8 * MB, written=8 * MB)
    epilogue = site(gemm, bias, family="epilogue", read=8 * MB, written=8 * MB)
    # THEN all that is saved is a call: the pass over the result is as long as it was
    after = time_after(epilogue, site_memory(epilogue, CPU))
    assert after.gemm_us == 5000.0
    assert after.body_us == pytest.approx(1000.0 - CPU.min_kernel_us, rel=0.01)


def test_compiled_cpu_code_writes_a_concatenation_out_and_reads_it_back():
    # GIVEN rope: mul, cat, mul, add; 8 MB each at 10 GB/s. In the middle the cat is written out...
    mul, cat, add = kernel(dur_us=1602.0), kernel("aten.cat", 1602.0), kernel("aten.add", 2402.0, read=16 * MB)
    inside = site(mul, cat, mul, add)
    outside = site(mul, mul, add, cat)
    memory_us = 1600.0
    assert time_after(inside, site_memory(inside, WARM_CPU)).us == pytest.approx(memory_us + 2400 + 2)
    # ...at the end it is the output itself, and a GPU never writes it
    assert time_after(outside, site_memory(outside, WARM_CPU)).us == pytest.approx(memory_us + 2)
    assert estimate(inside, GPU).likely_us == pytest.approx(estimate(outside, GPU).likely_us)


def test_a_residual_sum_is_read_back_by_the_norm_that_is_compiled_with_it():
    add = kernel("aten.add", 2402.0, read=16 * MB)
    mean, scale = kernel("aten.mean", 802.0, written=8000), kernel(dur_us=1602.0)
    one = site(add, mean, scale, family="reduction", read=16 * MB, written=8 * MB)
    two = site(add, mean, scale, family="reduction", read=16 * MB, written=16 * MB)
    difference = time_after(two, site_memory(two, WARM_CPU)).us - time_after(one, site_memory(one, WARM_CPU)).us
    assert difference == pytest.approx(1600.0)  # 8 MB more written, and read back, at 10 GB/s


def test_page_faults_of_fresh_outputs_are_saved_with_them():
    # GIVEN kernels of 128 MB whose fresh results of 43 MB cost page faults
    big = {"read": 85 * MB, "written": 43 * MB}
    memory = site_memory(site(kernel(dur_us=20_000, **big)), CPU)
    assert memory.us(85 * MB, 43 * MB) > 1.5 * memory.us(128 * MB, 0)


# --- step time -----------------------------------------------------------------------------------


def graph(spans, device_kind="cuda", step_us=0.0, steps=1, unlinked=()):
    made = OpGraph(device_kind=device_kind, step_us=step_us, coverage=Coverage(steps=steps))
    for start, dur, stream in spans:
        made.add(Op(0, "aten.mul", (), (), kernels=(Kernel("k", start, dur, stream),)))
    made.unlinked = [Kernel("k", start, dur) for start, dur in unlinked]
    return made


def test_a_launch_bound_step_is_worth_launches_not_device_time():
    # GIVEN a device that works 2 us in every 20
    step = step_model(graph([(20.0 * i, 2.0, 0) for i in range(50)], step_us=1000.0), GPU)
    assert (step.busy_us, step.kernels, step.launch_us) == (100.0, 50, 20.0)
    assert step.device_share == pytest.approx(0.1)
    # WHEN ten launches and 20 us of device time go THEN the launches count for the 90 %
    assert step_saving(20.0, 10, step) == pytest.approx(0.1 * 20 + 0.9 * 200)


def test_a_busy_device_is_worth_its_device_time():
    step = step_model(graph([(100.0 * i, 100.0, 0) for i in range(10)], step_us=1000.0), GPU)
    assert step.launch_us == GPU.launch_us
    assert step_saving(300.0, 5, step) == pytest.approx(300.0)


def test_streams_that_overlap_are_counted_once():
    step = step_model(graph([(0.0, 100.0, 0), (50.0, 100.0, 1), (0.0, 10.0, 2)]), GPU)
    assert (step.busy_us, step.step_us) == (150.0, 150.0)


def test_a_cpu_run_is_in_series():
    # GIVEN ten ops of 50 us in a step of 1000 us: 50 us of Python for each
    step = step_model(graph([(100.0 * i, 50.0, 0) for i in range(10)], device_kind="cpu", step_us=1000.0), CPU)
    assert (step.serial, step.launch_us) == (True, 50.0)
    assert step_saving(120.0, 3, step) == pytest.approx(120 + 150)


def test_ops_of_a_busy_machine_save_no_more_than_their_share_of_the_step():
    # GIVEN ops of 1000 us in all under the profiler, and a bare step of 400 us
    busy = graph([(100.0 * i, 100.0, 0) for i in range(10)], device_kind="cpu", step_us=400.0)
    step = step_model(busy, CPU)
    assert (step.busy_us, step.stretch) == (400.0, 2.5)
    # THEN half of the kernel time is half of the step, and all of it no more than the step
    assert step_saving(500.0, 3, step) == pytest.approx(200.0)
    assert step_saving(1000.0, 3, step) == pytest.approx(400.0)
    # AND a sentence says so: on a CPU only
    assert "record again on a quiet machine" in doubt(busy)
    assert doubt(graph([(0.0, 1000.0, 0)], step_us=400.0)) == ""
    assert step_model(graph([(0.0, 1000.0, 0)], step_us=400.0), GPU).stretch == 1.0


@pytest.mark.parametrize(
    ("op_us", "step_us", "steps", "doubted"),
    [
        (100.0, 1000.0, 1, False),
        (105.0, 1000.0, 1, False),
        (110.0, 1000.0, 1, True),
        (110.0, 600.0, 2, False),
        (4.0, 22.0, 1, False),  # small ops, whose times are in part the profiler's
        (110.0, 0.0, 1, False),  # the step was not timed
    ],
)
def test_times_are_doubted_beyond_noise_only(op_us, step_us, steps, doubted):
    spans = [(op_us * i, op_us, 0) for i in range(10)]
    assert bool(doubt(graph(spans, device_kind="cpu", step_us=step_us, steps=steps))) is doubted


def test_threads_may_run_side_by_side():
    two = graph([(0.0, 800.0, 0), (0.0, 800.0, 0)], device_kind="cpu", step_us=1000.0)
    assert doubt(two) != ""
    two.ops[1].thread = 1
    assert doubt(two) == ""


def test_an_audit_notes_that_its_times_are_doubted():
    busy = graph([(0.0, 800.0, 0), (800.0, 800.0, 0)], device_kind="cpu", step_us=1000.0)
    notes = audit_graph(busy, rules=(), device=CPU).document.run.notes
    assert notes == [doubt(busy)]


def test_a_window_of_several_steps_and_unlinked_kernels():
    step = step_model(graph([(0.0, 10.0, 0)], step_us=100.0, steps=3, unlinked=[(50.0, 20.0)]), GPU)
    assert (step.step_us, step.busy_us, step.kernels) == (300.0, 30.0, 2)


def test_an_empty_graph_and_a_trace_without_timing():
    assert step_model(OpGraph(), GPU) == StepModel(0.0, 0.0, 0, 0.0, True)
    untimed = step_model(graph([(0.0, 0.0, 0)]), UNKNOWN)
    assert (untimed.step_us, untimed.busy_us, untimed.launch_us) == (0.0, 0.0, 0.0)
    assert step_saving(0.0, 5, untimed) == 0.0


@given(
    likely=st.floats(0, 1e9),
    launches=st.integers(-5, 10_000),
    step_us=st.floats(0, 1e9),
    busy=st.floats(0, 1e9),
    launch=st.floats(0, 1e4),
    serial=st.booleans(),
)
def test_a_step_never_saves_more_than_itself(likely, launches, step_us, busy, launch, serial):
    step = StepModel(max(step_us, busy), busy, 10, launch, serial)
    saved = step_saving(likely, launches, step)
    assert 0.0 <= saved <= (step.step_us or likely)


@pytest.mark.parametrize(
    ("step_us", "in_findings_us", "cap"),
    [
        (100.0, 0.0, 1.0),
        (100.0, 50.0, 2.0),
        (100.0, 100.0, 100.0),
        (100.0, 500.0, 100.0),
        (0.0, 5.0, 1.0),
        (100.0, -3.0, 1.0),
    ],
)
def test_amdahl_cap(step_us, in_findings_us, cap):
    assert amdahl_cap(step_us, in_findings_us) == pytest.approx(cap)


def test_a_real_device_and_a_real_chain():
    # GIVEN the four-op chain on 134 MB of fp16 of which 1.07 GB of traffic become 268 MB, at the achievable bandwidth
    h100 = find_device("NVIDIA H100 80GB HBM3", "cuda")
    one = kernel(dur_us=268 * MB / 2948e3 + 1.5, read=134 * MB, written=134 * MB, numel=67 * MB, dtype="f16")
    chain = site(one, one, one, one, read=134 * MB, written=134 * MB)
    speedup = chain.now_us / (chain.now_us - estimate(chain, h100).likely_us)
    assert speedup == pytest.approx(4.0, rel=0.01)


def test_library_calls_that_wait_for_each_other_take_longer():
    # GIVEN exp, then tanh, on a machine where three such calls in one loop take twice their time
    device = msgspec.structs.replace(WARM_CPU, chained=2.0)
    one = site(kernel(dur_us=802.0), kernel("aten.tanh", 802.0))
    two = site(kernel(dur_us=802.0), kernel("aten.exp", 802.0), kernel("aten.tanh", 802.0))
    assert time_after(one, site_memory(one, device)).arithmetic_us == pytest.approx(4000)
    assert time_after(two, site_memory(two, device)).arithmetic_us == pytest.approx(1.5 * 4600)
