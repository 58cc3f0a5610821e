"""The options of `python -m pyllmc.train`: the table that its parser, its help and its defaults come from.

Short flags are those of llm.c's trainer. The small run is the one that happens when neither -e nor -i names
something bigger: a model and a length for about a minute of two CPU cores, or of a GPU.
"""

from .cli import Option

ENGINE = "the engine's"

SHAPE_FIELDS = ("layers", "heads", "channels", "vocab", "context")

GROUPS = {
    "data": (
        Option("data", "--data", "text file or glob to train on", metavar="FILE",
               decided_by="the help topics that come with Python"),
        Option("tokenizer", "--tokenizer", "bytes, gpt2, or a tokenizer file", metavar="NAME",
               decided_by="what lies beside -e's weights, else bytes for text, for shards by their vocabulary"),
        Option("train", "-i --train-data", "token shards to train on, a glob pattern", metavar="PATTERN"),
        Option("val", "-j --val-data", "token shards to validate on", metavar="PATTERN"),
        Option("overfit", "-a --overfit", "train on one batch of the validation data only", bool, False),
    ),
    "model": (
        Option("model", "-e --model", "checkpoint file, run folder, Hugging Face folder, or a descriptor such as d12 or gpt3:c768",
               metavar="MODEL", decided_by="a small model, on a GPU d12's shape"),
        Option("layers", "--layers", "layers L", int, decided_by="-e's, or 3, on a GPU 12"),
        Option("heads", "--heads", "attention heads NH, which divide C", int, decided_by="-e's, or 4, on a GPU 12"),
        Option("channels", "--channels", "channels C", int, decided_by="-e's, or 128, on a GPU 768"),
        Option("vocab", "--vocab", "vocabulary V", int, decided_by="-e's, or the tokenizer's"),
        Option("context", "--context", "longest sequence maxT", int, decided_by="-e's or T"),
    ),
    "batch": (
        Option("batch", "-b --batch", "rows B of a micro-batch", int, 4, small=8,
               gpu_by="what fits, up to 16"),
        Option("seq_len", "-t --seq-len", "tokens T of a row", int, 1024, small=64, gpu=256),
        Option("total_tokens", "-d --total-tokens", "tokens of one update, a multiple of B*T", int,
               decided_by="B*T", gpu_by="4096 or close"),
    ),
    "optimization": (
        Option("steps", "-x --steps", "updates in all; -1: one epoch", int, -1, small=1500,
               gpu_by="what takes about a minute, 16 epochs at most"),
        Option("schedule", "-k --schedule", "learning rate: cosine, linear, constant or wsd", str, "cosine",
               metavar="NAME"),
        Option("lr", "-l --lr", "peak learning rate", float, decided_by=ENGINE, small=3e-3, gpu=1e-3),
        Option("warmup", "-u --warmup", "updates of linear warm-up", int, 0, small=60,
               gpu_by="a twentieth of the updates"),
        Option("final_fraction", "-q --final-fraction", "of the peak learning rate, at the end", float, 1.0,
               small=0.1, gpu=0.1),
        Option("weight_decay", "-c --weight-decay", "of the matrices, decoupled", float, decided_by=ENGINE,
               small=0.1, gpu=0.1),
        Option("max_loss_z", "-sl --max-loss-z", "skip updates whose loss has a larger z-score; 0: never",
               float, decided_by=ENGINE),
        Option("max_norm_z", "-sg --max-norm-z", "the same for the gradient norm", float, decided_by=ENGINE),
        Option("seed", "--seed", "of initial weights, data order, rounding and samples", int,
               decided_by="llm.c's"),
    ),
    "watching": (
        Option("val_every", "-v --val-every", "validate every N updates; 0: never", int, 20, small=100,
               gpu_by="a fifteenth of the updates"),
        Option("val_batches", "-m --val-batches", "validation batches at most; -1: all", int, 20),
        Option("hellaswag", "-h --hellaswag", "measure HellaSwag's accuracy with each validation but the first, and at "
               "the end; --hellaswag-data alone does so too", bool, False),
        Option("hellaswag_data", "--hellaswag-data", "evaluation file, as `python -m pyllmc.data hellaswag` makes it",
               metavar="FILE", default="dev/data/hellaswag/hellaswag_val.bin"),
        Option("sample_every", "-s --sample-every", "draw a text every N updates and at the end; 0: never",
               int, 20, small=500, gpu_by="a third of the updates"),
        Option("sample_tokens", "-g --sample-tokens", "tokens of such a text", int, 64, small=256, gpu=256),
        Option("peak_tflops", "--peak-tflops", "the device's peak in TFLOP/s, for utilisation (MFU)", float,
               decided_by="the data sheet's, for GPUs that are known"),
        Option("gpu_every", "-lg --gpu-every", "show and log the GPU's watts, clock and temperature every N updates; "
               "0: never", int, 1),
    ),
    "run folder": (
        Option("config", "--config", "TOML file of options, NAME = VALUE by their long names, such as a run's run.toml; the "
               "command line wins", metavar="FILE"),
        Option("output", "-o --output", "folder for checkpoints, logs and the picture", metavar="FOLDER",
               decided_by="runs/TIME-NAME"),
        Option("checkpoint_every", "-n --checkpoint-every", "save every N updates; 0: at the end only", int,
               0),
        Option("keep", "-nk --keep", "keep the newest N checkpoints; 0: all", int, 0),
        Option("major_every", "-nm --major-every", "and those every N updates; 0: no others", int, 0),
        Option("resume", "-y --resume", "go on from the latest checkpoint in -o", bool, False),
        Option("resume_weights_only", "--resume-weights-only",
               "resume even without optimizer state: a fresh one is started", switch=True),
        Option("log", "--log", "log to tensorboard (in the run folder) or wandb too; may be repeated", many=True,
               metavar="NAME"),
        Option("no_plot", "--no-plot", "draw no picture at the end", switch=True),
    ),
    "several processes": (
        Option("world", "-pn --world", "processes that train together: 1, for now", int, 1),
        Option("rank", "-pr --rank", "which of them this is", int, 0),
        Option("zero_stage", "-z --zero-stage", "share the optimizer's state out: 0 no, 1 yes", int, decided_by=ENGINE),
        Option("gpus_per_node", "-pg --gpus-per-node", "llm.c's, without effect here", int),
        Option("init_method", "-pi --init-method", "llm.c's, without effect here"),
        Option("server", "-ps --server", "llm.c's, without effect here"),
        Option("shared_folder", "-pf --shared-folder", "llm.c's, without effect here"),
    ),
    "engine": (
        Option("device", "--device", "auto, cpu, cuda or cuda:N", str, "auto", metavar="NAME"),
        Option("threads", "--threads", "CPU threads; 0: all", int, decided_by=ENGINE),
        Option("precision", "--precision", "fp32 or bf16", metavar="NAME", decided_by=ENGINE),
        Option("master_weights", "-w --master-weights", "bf16: keep fp32 weights for the optimizer", bool,
               decided_by=ENGINE),
        Option("tf32", "-f --tf32", "fp32: let matrix products use TF32", bool, decided_by=ENGINE),
        Option("recompute", "-r --recompute", "recompute in backward: 0 nothing, 1 GELU, 2 LayerNorm too",
               int, 1, small=0, gpu=0),
        Option("gelu_fusion", "-ge --gelu-fusion", "GELU in the matrix products: 0 off, 1 forward, 2 both",
               int, decided_by=ENGINE),
        Option("attention", "--attention", "auto, cudnn or own", metavar="NAME", decided_by=ENGINE),
        Option("head_chunks", "--head-chunks", "classify the tokens in N pieces", int, decided_by=ENGINE),
        Option("deterministic", "--deterministic", "same bits from every run", bool, decided_by=ENGINE),
        Option("tune", "--tune", "time the matrix-product algorithms first and keep the fastest", bool,
               decided_by=ENGINE),
        Option("streams", "--streams", "4: lanes for inputs, targets, compute and loss; 1: one for all",
               int, decided_by=ENGINE),
        Option("graph", "--graph", "replay steps as captured graphs", bool, decided_by=ENGINE),
        Option("prefetch", "--prefetch", "off, host, l2 or all", metavar="NAME", decided_by=ENGINE),
        Option("result_lag", "--lag", "read results N updates late", int,
               decided_by="2 on CUDA, 0 on the CPU"),
    ),
}  # fmt: skip

ROWS = tuple(row for rows in GROUPS.values() for row in rows)

# Rows whose name is a keyword of GPT2: a field of llmc_options.
ENGINE_FIELDS = (
    "threads", "precision", "master_weights", "tf32", "recompute", "gelu_fusion", "attention", "head_chunks",
    "deterministic", "tune", "streams", "graph", "prefetch", "seed",
    "zero_stage",
)  # fmt: skip
# Rows whose name is a field of llmc_hyper, or of Settings.
HYPER_FIELDS = ("weight_decay", "max_loss_z", "max_norm_z")
SETTINGS_FIELDS = (
    "total_tokens", "schedule", "lr", "warmup", "final_fraction", "val_every", "val_batches", "sample_every",
    "sample_tokens", "checkpoint_every", "keep", "major_every", "resume", "resume_weights_only", "overfit", "result_lag",
    "peak_tflops", "gpu_every",
)  # fmt: skip
# How llm.c's processes find each other: taken, so that its scripts run, and named in a note.
WITHOUT_EFFECT = ("gpus_per_node", "init_method", "server", "shared_folder")
# An option on the command line, and those of a file that it replaces beside its own.
REPLACES = {"model": SHAPE_FIELDS, "train": ("data", "tokenizer"), "data": ("train", "val")}


def is_small(given):
    """Whether the defaults of the small run hold: nothing names a bigger model or ready data."""
    return not hasattr(given, "model") and not hasattr(given, "train")


def pick(args, names):
    """{name: value} of those rows that were given or have a default of their own."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def without_effect(given):
    """A note that names the flags among `given` that do nothing; "" if there are none."""
    flags = [row.flags.split()[0] for row in ROWS if row.name in WITHOUT_EFFECT and row.name in given]
    return f"without effect here: {' '.join(flags)}" if flags else ""
