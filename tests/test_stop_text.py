"""Stop texts in pieces, against searching the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmc.errors import InvalidArgument
from pyllmc.stop_text import StopText

SHORT = st.text("ab", min_size=1, max_size=4)


@given(st.lists(st.text("ab\n", max_size=3), max_size=12), st.lists(SHORT, max_size=3))
def test_pieces_give_what_the_whole_gives(pieces, stops):
    whole = "".join(pieces)
    ends = [end for end in range(len(whole) + 1) if whole[:end].endswith(tuple(stops))]
    met = max((stop for stop in stops if whole[: ends[0]].endswith(stop)), key=len) if ends else None
    filtered = StopText(stops)
    shown = "".join(map(filtered.push, pieces)) + filtered.finish()
    assert shown == (whole if met is None else whole[: ends[0] - len(met)])
    assert filtered.found == met


def test_only_what_may_begin_a_stop_is_held_back():
    filtered = StopText(["\nUser:", "END"])
    assert filtered.push("one\n") == "one"
    assert filtered.push("two E") == "\ntwo "
    assert filtered.push("N") == ""
    assert filtered.push("d") == "ENd"
    assert filtered.push("\nUse") == ""
    assert (filtered.push("r: hello"), filtered.found) == ("", "\nUser:")
    assert filtered.push("more") == filtered.finish() == ""


def test_an_unfinished_stop_is_text_after_all():
    filtered = StopText(["aab"])
    assert filtered.push("aaa") == "a" and filtered.finish() == "aa"
    with pytest.raises(InvalidArgument, match="at least one character"):
        StopText(["x", ""])
