"""A GPT-2 on an engine: made, trained, evaluated, sampled and saved from Python."""

import os
import types
import weakref
from collections import deque

import numpy as np

from . import _native, generation, hf, options, tuning
from .batches import Slot, as_tokens, check_ids, micro_batches
from .checkpoint import iter_checkpoint, peek_checkpoint, write_checkpoint
from .config import GPT2Config
from .errors import InvalidArgument, nearest
from .inspection import Inspected, c_config, c_options
from .results import StepHandle
from .rng import initial_params
from .snapshot import Snapshot
from .tensors import Tensors

PLAIN = {int, float, bool, type(None)}  # values that can't change in place


class GPT2(Inspected):
    """A model in an engine. Make one with from_checkpoint, from_pretrained, from_descriptor or
    from_config.

    batch (B) and seq_len (T) fix the shape of a micro-batch. device: "auto" (CUDA if it can be used, else
    the CPU), "cpu", "cuda", "cuda:N". library: an engine file to use instead of the ones found. Any field of
    llmc_options is a keyword (llmc.h describes them; precision, attention and prefetch take words, such as
    precision="bf16"); what isn't given has C's default. A misspelt keyword is a TypeError. With train=0 the model
    evaluates, generates and is saved in a fraction of the memory; what needs gradients or moments is Unavailable.

    One thread drives a model; acquire_slot and Slot's methods may be used by a second one beside it, and a Snapshot
    be read by a third. Ctrl-C is heard while it waits; the CPU engine computes in the call itself, so there it is
    heard when that returns. Use it in a `with` block, or call close(), or leave it to the garbage collector or the
    interpreter's exit.
    """

    def __init__(self, config, *, batch, seq_len, device="auto", library=None, **engine_options):
        """Parameters, gradients and moments start as zeros: the named constructors fill in the weights."""
        options.check_names(engine_options, "llmc_options", type(self).__name__)
        self.library, ordinal, self.device_reason = _native.choose(device, library)
        self.config, self.updates = config, 0
        ffi = self.library.ffi
        shape = c_config(ffi, config)
        wanted = c_options(self.library, ordinal, {"batch": batch, "seq_len": seq_len, **engine_options})
        tunes = self.library.backend != "cpu" and wanted.tune and not wanted.deterministic
        if tunes:
            tuning.recall(self.library)
        self.handle = _native.Handle(self.library, shape, wanted)
        if tunes:
            tuning.keep(self.library)
        self._finalizer = weakref.finalize(self, self.handle.close)  # at the latest at the interpreter's exit
        resolved = ffi.new("llmc_options *")
        self.handle.call("llmc_model_options", resolved)
        self.options = types.SimpleNamespace(**_native.as_dict(ffi, resolved[0]))
        self.batch, self.seq_len = self.options.batch, self.options.seq_len
        self.device = self.library.backend
        if self.device != "cpu":
            self.device += f":{self.options.device}"
        table = self._param_table(shape)
        self.param_shapes = {row["name"]: tuple(row["shape"][: row["dims"]]) for row in table}
        self.params, self.grads = Tensors(self, "LLMC_PARAM"), Tensors(self, "LLMC_GRAD")
        self.m, self.v = Tensors(self, "LLMC_ADAM_M"), Tensors(self, "LLMC_ADAM_V")
        self.master = Tensors(self, "LLMC_MASTER")
        self._default_hyper = ffi.new("llmc_hyper *")
        self.library.plain("llmc_hyper_default", self._default_hyper)
        self._hyper = self._given_hyper = None  # what the last update was given
        self._ticket = ffi.new("int64_t *")
        self._memory_of_slot = {}
        self._unread = deque()  # weak references to handles whose records the engine still keeps
        _native.log.info("engine: %s (%s)", self.device, self.device_reason)

    # -- making, saving, ending ----------------------------------------------------------------------

    @classmethod
    def from_checkpoint(cls, path, **arguments):
        """The model in an llm.c checkpoint, fp32 or bf16 (widened exactly, or taken as it is); arguments as
        GPT2's own.

        Raises FormatError for a damaged file, OSError for an unreadable one, InvalidArgument for a folder.
        """
        if os.path.isdir(path):
            raise InvalidArgument(
                f"{path}: a folder, expected a checkpoint such as a run's model_00001000.bin; GPT2.from_pretrained reads "
                "Hugging Face's folders"
            )
        config, _ = peek_checkpoint(path)
        model = cls(config, **arguments)
        return model._filled_from(iter_checkpoint(path))

    @classmethod
    def from_pretrained(cls, folder, **arguments):
        """The model in a Hugging Face folder on this machine: config.json and safetensors, in one file or several,
        fp32, bf16 or fp16 (all taken exactly by an fp32 model). Arguments as GPT2's own.

        Raises FormatError for a model that this engine can't hold, with the reason, or for a damaged one;
        InvalidArgument where there is no such folder. See pyllmc.convert for other formats.
        """
        source = hf.read_pretrained(folder)
        model = cls(source.config, **arguments)
        return model._filled_from(source.params.items())

    @classmethod
    def from_descriptor(cls, descriptor, **arguments):
        """A model of a known shape ("d12", "gpt3:c768"), randomly initialised. Arguments as from_config's."""
        return cls.from_config(GPT2Config.from_descriptor(descriptor), **arguments)

    @classmethod
    def from_config(cls, config, *, init="random", init_seed=42, **arguments):
        """A new model of the shape `config`; arguments as GPT2's own.

        init: "random", as llm.c draws it from init_seed, or "zeros".
        """
        if init not in ("random", "zeros"):
            raise InvalidArgument(f"init {init!r}: {nearest(init, ('random', 'zeros'))}")
        model = cls(config, **arguments)
        return model if init == "zeros" else model._filled_from(initial_params(config, init_seed).items())

    def _filled_from(self, named_arrays):
        try:
            for name, array in named_arrays:
                self.params[name] = array
        except BaseException:
            self.close()
            raise
        return self

    def save(self, path, dtype=None):
        """Write the weights as an llm.c checkpoint. dtype: "fp32", "bf16" (rounded to nearest even), or the
        model's own precision. The file appears complete or not at all."""
        dtype = dtype or options.word_of("precision", self.options.precision)
        write_checkpoint(path, self.config, self.params, dtype)

    def snapshot(self):
        """A Snapshot of all that a checkpoint holds, as the updates enqueued so far leave it, for a `with` block.

        Another thread may read it while this one trains. Its memory, as much again as parameters, moments and
        master weights take, is made by the first call and kept. Raises OutOfMemory where it doesn't fit, StateError
        while another snapshot is in use.
        """
        return Snapshot(self)

    def save_pretrained(self, folder, dtype=None, *, tokenizer=None, force=False):
        """Write a folder that transformers' GPT2LMHeadModel.from_pretrained reads. dtype: as save's.

        tokenizer: whose files to write too: a Tokenizer, "gpt2", an llm.c tokenizer file, or a folder to copy them
        from. The folder is new or empty, unless `force`, which replaces the model in it. All files appear complete
        or not at all. Raises InvalidArgument.
        """
        dtype = dtype or options.word_of("precision", self.options.precision)
        hf.write_pretrained(folder, self.config, self.params, dtype, tokenizer=tokenizer, force=force)

    def close(self):
        """Wait for enqueued work and free the engine's memory. Closing twice is fine."""
        self._memory_of_slot.clear()
        self._finalizer()

    @property
    def closed(self):
        return self.handle.closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = "closed" if self.closed else self.device
        return f"<GPT2 {self.config} batch={self.batch} seq_len={self.seq_len} {state}>"

    # -- training ------------------------------------------------------------------------------------

    def step(self, inputs, targets, *, lr=None, **hyper):
        """One update from a batch: forward, backward, AdamW. Returns a StepHandle without waiting for it.

        inputs, targets: token ids of any integer dtype, (B,T), or (n,B,T) or a sequence of (B,T) to
        accumulate n micro-batches. They are copied: the arrays are yours again on return. lr and any field
        of llmc_hyper are keywords; what isn't given has C's default; `step`, which counts updates from 1,
        goes on from the last one.
        """
        c_hyper = self._c_hyper(lr, hyper)
        self.backward(inputs, targets)
        return self._update(c_hyper)

    def backward(self, inputs, targets, *, first=0, of=None):
        """step without its update: `grads` then holds the gradients of the mean loss, and update() applies them.

        Micro-batches of one update may come in several calls, in order: these are number `first` (from 0) and the
        following of `of` in all, None: of those given. The first replaces the gradients, the others add.
        """
        pairs = micro_batches(inputs, targets, self.batch, self.seq_len, self.config.vocab)
        of = first + len(pairs) if of is None else of
        if not 0 <= first <= of - len(pairs):
            raise InvalidArgument(f"{len(pairs)} micro-batches from number {first} on are too many for {of} in all")
        for i, pair in enumerate(pairs, first):
            with self._upload(*pair) as slot:
                self.micro_step(slot, i, of)

    def micro_step(self, slot, i=0, n=1):
        """Forward and backward of a submitted slot, the i-th (from 0) of n. Consumes the slot."""
        self.handle.call("llmc_micro_step", slot.expect_submitted(), i, n)
        slot.consumed()

    def update(self, *, lr=None, **hyper):
        """Clip, guard and AdamW after the last micro-step. Keywords as step's. Returns a StepHandle."""
        return self._update(self._c_hyper(lr, hyper))

    def hyper_default(self):
        """C's default of every field of llmc_hyper, as a dict."""
        return _native.as_dict(self.library.ffi, self._default_hyper[0])

    def acquire_slot(self, timeout=None):
        """A Slot to fill, once one is free. timeout: seconds, None for ever; then ResultTimeout."""
        ffi = self.library.ffi
        out = ffi.new(_native.ctype("llmc_slot *"))
        self.handle.wait("llmc_slot_acquire", (), (out,), timeout)
        slot = out[0]
        if slot.index not in self._memory_of_slot:
            memory = (self.handle.view(p, slot.count * 4) for p in (slot.inputs, slot.targets))
            arrays = [np.frombuffer(buffer, np.int32).reshape(self.batch, self.seq_len) for buffer in memory]
            self._memory_of_slot[slot.index] = arrays
        return Slot(self.handle, slot.index, *(array.view() for array in self._memory_of_slot[slot.index]))

    def synchronize(self):
        """Wait until all enqueued work is done."""
        self.handle.call("llmc_synchronize")

    def notes(self):
        """What the engine has to say since the last time, such as a fallback and why; a list of sentences."""
        return self.handle.text("llmc_model_notes").splitlines()

    # -- evaluation and generation -------------------------------------------------------------------

    def eval_loss(self, inputs, targets, per_position=False):
        """Mean cross-entropy in nats, without training. Shapes as step's. With per_position the losses,
        float32 in the shape of the inputs."""
        pairs = micro_batches(inputs, targets, self.batch, self.seq_len, self.config.vocab)
        found = []
        for pair in pairs:
            with self._upload(*pair) as slot:
                found.append(self.eval_slot(slot, per_position))
        if per_position:
            return np.stack(found) if np.ndim(inputs) == 3 else found[0]
        return sum(found) / len(found)

    def eval_slot(self, slot, per_position=False):
        """eval_loss of a submitted slot, which it consumes."""
        ffi = self.library.ffi
        mean = ffi.new("float *")
        losses = np.empty((self.batch, self.seq_len), np.float32) if per_position else None
        pointer = ffi.from_buffer("float[]", losses) if per_position else ffi.NULL
        self.handle.call("llmc_eval", slot.expect_submitted(), pointer, mean)
        slot.consumed()
        return losses if per_position else mean[0]

    def logits(self, tokens):
        """Logits of the token after each position, float32 (rows, n, V), for tokens (rows, n) or (n,), with
        rows <= B and n <= T. (The rest of the batch is padding, which a causal model can't see.)"""
        array = as_tokens(tokens)
        rows = np.atleast_2d(array)
        if rows.ndim != 2 or rows.shape[0] > self.batch or rows.shape[1] > self.seq_len:
            raise InvalidArgument(f"tokens must be at most ({self.batch}, {self.seq_len}), got {array.shape}")
        check_ids(rows, self.config.vocab)
        count, n = rows.shape
        padded = np.zeros((self.batch, self.seq_len), np.int32)
        padded[:count, :n] = rows
        out = np.empty((self.batch, self.seq_len, self.config.vocab), np.float32)
        pointer = self.library.ffi.from_buffer("float[]", out)
        with self._upload(padded, np.zeros_like(padded)) as slot:
            self.handle.call("llmc_logits", slot.expect_submitted(), pointer, out.nbytes)
            slot.consumed()
        out = out[:count, :n]
        return out[0] if array.ndim == 1 else out

    def generate(self, prompt_ids, max_new, *, on_token=None, **how):
        """Ids drawn to follow `prompt_ids`, as a list of at most max_new; see stream for the keywords.

        on_token: called with each id as soon as it is drawn.
        """
        drawn = []
        for token in self.stream(prompt_ids, max_new, **how):
            drawn.append(token)
            if on_token is not None:
                on_token(token)
        return drawn

    def stream(self, prompt_ids, max_new, *, temperature=1.0, top_k=None, top_p=None, seed=0, stop=None):
        """generate as an iterator, which draws a token each time it is asked for one.

        temperature 0 takes the likeliest token. top_k, top_p: None is off. stop: an id, or several, after
        which (itself left out) nothing more is drawn. The same seed draws the same ids.

        A context holds T tokens. A longer prompt is cut to its last T; when the context is full, the last
        half of it is read in again, and drawing goes on from there: any length works, for any T.
        Training or evaluating between two tokens ends the stream with a StateError.
        """
        return generation.stream(self, prompt_ids, max_new, temperature, top_k, top_p, seed, stop)

    # -- inner ---------------------------------------------------------------------------------------

    def constant(self, name):
        """An enumerator of llmc.h."""
        return _native.constants()[name]

    def _upload(self, inputs, targets):
        slot = self.acquire_slot()
        with slot:
            slot.inputs[:] = inputs
            slot.targets[:] = targets
            slot.submit()
        return slot

    def _c_hyper(self, lr, given):
        """The llmc_hyper of the next update. What a training loop gives each time alike is looked at once: the host has
        little time beside a GPU, and finds its caches cold."""
        if lr is not None and "learning_rate" in given:
            raise TypeError("lr and learning_rate are the same: give one of them")
        if not PLAIN.issuperset(map(type, given.values())) or given != self._given_hyper:
            options.check_names(given, "llmc_hyper", "step")
            c_hyper = self.library.ffi.new(_native.ctype("llmc_hyper *"), self._default_hyper[0])
            options.fill(c_hyper, given)
            self._hyper, self._given_hyper = c_hyper, given
        if "learning_rate" not in given:
            rate = self._default_hyper.learning_rate if lr is None else lr
            try:
                self._hyper.learning_rate = rate
            except (TypeError, ValueError, OverflowError):
                options.fill(self._hyper, {"learning_rate": rate})  # says what is wrong, or takes it all the same
        if given.get("step") is None:
            self._hyper.step = self.updates + 1
        return self._hyper

    def _update(self, c_hyper):
        if len(self._unread) == self.options.results:
            # the new update takes the place of the oldest record: read that one, if anyone still wants it
            oldest = self._unread.popleft()()
            if oldest is not None:
                oldest.result()
        self.handle.call("llmc_update", c_hyper, self._ticket)
        self.updates = c_hyper.step
        handle = StepHandle(self, self._ticket[0])
        self._unread.append(weakref.ref(handle))
        return handle

    def _param_table(self, shape):
        info = self.library.ffi.new("llmc_param *")
        for index in range(self.constant("LLMC_NUM_PARAMS")):
            self.library.call("llmc_param_info", shape, index, info)
            yield _native.as_dict(self.library.ffi, info[0])
