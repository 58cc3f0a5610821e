"""What an engine's model lets one see: memory, device, generators, the guard, a step's timeline."""

import types
from dataclasses import dataclass

from . import _native, options
from .config import GPT2Config
from .errors import InvalidArgument

GUARD_FIELDS = ("loss", "norm", "loss_seen", "norm_seen")


@dataclass(frozen=True)
class Span:
    """A piece of work on a lane of a recorded step; times in microseconds since the step's start."""

    name: str
    lane: str
    layer: int | None
    start_us: float
    end_us: float


class Inspected:
    """The part of GPT2 that looks inside."""

    @classmethod
    def memory_plan(cls, config, *, batch, seq_len, device="auto", library=None, **engine_options):
        """Bytes that a model would take, without making one: the fields of llmc_memory."""
        options.check_names(engine_options, "llmc_options", "memory_plan")
        chosen, ordinal, _ = _native.choose(device, library)
        wanted = c_options(chosen, ordinal, {"batch": batch, "seq_len": seq_len, **engine_options})
        plan = chosen.ffi.new("llmc_memory *")
        chosen.call("llmc_memory_plan", c_config(chosen.ffi, config), wanted, plan)
        return types.SimpleNamespace(**_native.as_dict(chosen.ffi, plan[0]))

    @property
    def memory(self):
        """Bytes that this model takes: the fields of llmc_memory."""
        given = vars(self.options).copy()
        del given["device"]
        return self.memory_plan(self.config, device=self.device, library=self.library.path, **given)

    @property
    def device_info(self):
        """The device's fields of llmc_device, as a dict."""
        return self.library.device_info(self.options.device)

    @property
    def rng(self):
        """(now, before the last update): the stochastic-rounding generator. Assign `now` to set it."""
        now, before = (self.library.ffi.new("uint64_t *") for _ in range(2))
        self.handle.call("llmc_rng_get", now, before)
        return now[0], before[0]

    @rng.setter
    def rng(self, now):
        self.handle.call("llmc_rng_set", now)

    @property
    def guard(self):
        """The outlier guard's memory: {"loss", "norm": rings of 128 floats, "loss_seen", "norm_seen"}."""
        record = self.library.ffi.new("llmc_guard *")
        self.handle.call("llmc_guard_get", record)
        return _native.as_dict(self.library.ffi, record[0])

    @guard.setter
    def guard(self, values):
        if set(values) != set(GUARD_FIELDS):
            raise InvalidArgument(f"guard needs {', '.join(GUARD_FIELDS)}, got {', '.join(map(str, values))}")
        try:
            record = self.library.ffi.new("llmc_guard *", dict(values))
        except (TypeError, IndexError, OverflowError) as error:
            raise InvalidArgument(f"guard: {error}") from None
        self.handle.call("llmc_guard_set", record)

    def arm_timeline(self):
        """Record the spans of the next whole step."""
        self.handle.call("llmc_timeline_arm")

    def timeline(self):
        """The recorded step as a list of Span. Raises StateError before a step was recorded."""
        ffi = self.library.ffi
        count = ffi.new("int32_t *")
        self.handle.call("llmc_timeline_read", ffi.NULL, 0, count)
        spans = ffi.new("llmc_span[]", max(count[0], 1))
        self.handle.call("llmc_timeline_read", spans, count[0], count)
        listed = (_native.as_dict(ffi, spans[i]) for i in range(count[0]))
        return [
            Span(s["name"], s["lane"], None if s["layer"] < 0 else s["layer"], s["start_us"], s["end_us"])
            for s in listed
        ]


def c_config(ffi, config):
    """The llmc_config of a GPT2Config."""
    if not isinstance(config, GPT2Config):
        raise InvalidArgument(f"config must be a GPT2Config, got {config!r:.80}")
    fields = {name: getattr(config, name) for name in options.names("llmc_config")}
    return ffi.new("llmc_config *", fields)


def c_options(library, ordinal, given):
    """The llmc_options with C's defaults and what was given."""
    filled = library.ffi.new("llmc_options *")
    library.plain("llmc_options_default", filled)
    options.fill(filled, given)
    filled.device = ordinal
    return filled
