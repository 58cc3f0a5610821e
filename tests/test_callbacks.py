"""What a trainer tells, and to whom: mistakes in it are found before the first step."""

import pytest

from pyllmc import Callbacks
from pyllmc.callbacks import checked


@pytest.mark.parametrize("name, hint", [("on_stp", "did you mean 'on_step'?"), ("on_epoch_end", "known: on_start, on_step, ")])
def test_a_method_that_nobody_would_call(name, hint):
    with pytest.raises(TypeError) as caught:
        type("Mine", (Callbacks,), {name: lambda self: None})
    assert f"Mine.{name}: a trainer tells no such thing: " in str(caught.value) and hint in str(caught.value)


def test_what_else_a_subclass_may_have():
    class Mine(Callbacks):
        online = True

        def on_step(self, report):
            return self.online

        def only_mine(self):
            return None

    class Further(Mine):
        def on_step(self, report):
            return not super().on_step(report)

    assert Further().on_step(None) is False


@pytest.mark.parametrize("given", [Callbacks, [Callbacks], print, [print], [Callbacks(), None], None, "xy"])
def test_what_is_no_callback(given):
    with pytest.raises(TypeError, match="callbacks: expected objects of pyllmc.Callbacks' subclasses, got "):
        checked(given)


def test_what_is():
    first, second = Callbacks(), Callbacks()
    assert checked(first) == (first,) and checked(()) == ()
    assert checked([first, second]) == checked(iter([first, second])) == (first, second)
