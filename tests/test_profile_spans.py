"""Unions, overlaps and gaps of a step's spans, against counting microsecond by microsecond."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from synthetic_step import step

from pyllmc.inspection import Span
from pyllmc.profile.spans import analyse, bounds, common, gaps, holes, length, merged, since_first

END = 40
pairs = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def cells(intervals):
    return {at for start, end in intervals for at in range(start, end)}


@given(pairs)
def test_merged_is_the_union(intervals):
    found = merged(intervals)
    assert cells(found) == cells(intervals) and length(found) == len(cells(intervals))
    assert all(first[1] < second[0] for first, second in zip(found, found[1:], strict=False))


@given(pairs, pairs)
@example([(0, 1)], [(2, 3)])
@example([(0, 2)], [(2, 3)])
def test_common_is_the_intersection(first, second):
    found = common(merged(first), merged(second))
    assert cells(found) == cells(first) & cells(second) and length(found) == len(cells(found))


@given(pairs, st.integers(0, END), st.integers(0, END))
def test_holes_are_the_rest(intervals, start, end):
    assert cells(holes(merged(intervals), start, end)) == set(range(start, end)) - cells(intervals)


@given(st.lists(st.tuples(st.sampled_from(["compute", "inputs", "loss"]), st.integers(0, END), st.integers(0, END)), max_size=10))
def test_shares_are_those_of_counted_cells(listed):
    spans = [Span("upload inputs" if lane == "inputs" else lane, lane, None, min(a, b), max(a, b)) for lane, a, b in listed]
    found = analyse(spans)
    cell = {lane: cells((s.start_us, s.end_us) for s in spans if s.lane == lane) for lane in ("compute", "inputs", "loss")}
    ends = [s.end_us for s in spans if s.lane == "compute"] or [s.end_us for s in spans] or [0]
    whole = set(range(max(ends)))
    assert found["step_us"] == max(ends)
    if whole:
        assert found["idle"]["compute"] == pytest.approx(len(whole - cell["compute"]) / len(whole))
        assert found["idle"]["all_lanes"] == pytest.approx(len(whole - set().union(*cell.values())) / len(whole))
    if cell["inputs"]:
        assert found["copies"]["beside_compute"] == pytest.approx(len(cell["inputs"] & cell["compute"]) / len(cell["inputs"]))
    assert sum(gap["end_us"] - gap["start_us"] for gap in found["gaps"]) == len(whole - cell["compute"])


def test_a_nested_span_counts_once():
    spans = [Span("outer", "compute", None, 0.0, 10.0), Span("inner", "compute", None, 2.0, 5.0), Span("next", "compute", None, 12.0, 14.0)]
    found = analyse(spans)
    assert found["lanes"] == [{"lane": "compute", "spans": 3, "busy_us": 12.0, "share_of_step": 12 / 14, "beside_compute": None}]
    assert found["gaps"] == [{"start_us": 10.0, "end_us": 12.0, "after": "outer", "before": "next"}]


def test_what_can_not_be_is_left_out_and_counted():
    odd = [Span("nan", "compute", 0, math.nan, 3.0), Span("back", "compute", 0, 5.0, 4.0), Span("inf", "compute", 0, 1.0, math.inf)]
    found = analyse([*odd, Span("fine", "compute", 0, 1.0, 2.0)])
    assert found["unusable"] == 3 and found["step_us"] == 2.0 and found["idle"]["compute"] == 0.5
    empty = analyse([])
    assert empty["step_us"] == 0 and empty["idle"] == {"compute": None, "all_lanes": None} and empty["gaps"] == []


def test_gaps_are_named_and_the_longest_is_first():
    spans = [SimpleNamespace(name=name, start_us=a, end_us=b) for name, a, b in (("a", 2, 5), ("b", 5, 8), ("c", 15, 20), ("d", 22, 30))]
    assert gaps(spans, 0, 33) == [
        {"start_us": 8, "end_us": 15, "after": "b", "before": "c"}, {"start_us": 30, "end_us": 33, "after": "d", "before": None},
        {"start_us": 0, "end_us": 2, "after": None, "before": "a"}, {"start_us": 20, "end_us": 22, "after": "c", "before": "d"},
    ]  # fmt: skip


def test_a_copy_that_begins_before_the_step():
    spans = [Span("upload inputs", "inputs", None, -6.0, 2.0), Span("qkv", "compute", 0, 1.0, 9.0)]
    found = analyse(spans)
    assert found["step_us"] == 9.0 and found["copies"] == {"busy_us": 8.0, "beside_compute": 1 / 8}
    assert {row["lane"]: row["share_of_step"] for row in found["lanes"]} == pytest.approx({"inputs": 2 / 9, "compute": 8 / 9})


def test_a_step_on_four_lanes():
    found = analyse(step())
    assert [row["lane"] for row in found["lanes"]] == ["compute", "inputs", "targets", "loss"]
    assert found["gaps"][0]["after"] == "norm 1 bwd" and found["gaps"][0]["before"] == "embedding bwd"
    assert 0 < found["copies"]["beside_compute"] <= 1 and found["lanes"][0]["share_of_step"] > 0.9


def test_time_begins_with_the_first_op():
    late = [Span("upload inputs", "inputs", None, 100.0, 130.0), Span("embedding", "compute", None, 4000.0, 4010.0)]
    assert since_first(late) == [Span("upload inputs", "inputs", None, -3900.0, -3870.0), Span("embedding", "compute", None, 0.0, 10.0)]
    assert bounds(since_first(late)) == (0.0, 10.0) and since_first([]) == [] and since_first(late[:1]) == late[:1]
