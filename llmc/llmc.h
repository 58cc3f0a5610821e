/* llmc.h - the whole C ABI of the pyllmc engine, and its manual.
 *
 * One library per backend (libllmc_cpu.so, libllmc_cuda.so), the same symbols in each.
 * The engine never prints, never exits, never reads files, arguments or the environment.
 *
 * A training step, from any language:
 *
 *     llmc_slot_acquire(m, -1, &slot);            // pinned host memory for one batch
 *     ... fill slot.inputs, slot.targets ...
 *     llmc_slot_submit(m, slot.index);            // starts the upload
 *     llmc_micro_step(m, slot.index, 0, 1);       // forward + backward
 *     llmc_update(m, &hyper, &ticket);            // clip, AdamW
 *     llmc_result(m, ticket, -1, &result);        // now, or a step or two later
 *
 * Contracts that hold for every verb:
 *   - It returns LLMC_OK or an error; on an error llmc_last_error() (per thread) says which
 *     function, which value, and what was expected. Out-parameters are written on success only.
 *   - [async] verbs enqueue work and return; on the CPU backend they simply complete at once.
 *     [sync] verbs return when their effect is visible to the host.
 *   - A model may be driven by one thread at a time, except llmc_slot_* which may run in a loader
 *     thread beside it, and llmc_snapshot_read, _guard and _release, which may run in a saving thread.
 *     Models are independent of each other.
 *   - After LLMC_DEVICE the model is poisoned: every verb but llmc_model_free repeats the first
 *     message. llmc_model_free(NULL) does nothing.
 */
#ifndef LLMC_H
#define LLMC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- begin ABI: pyllmc parses the text between these two marks ---- */

enum { LLMC_ABI_VERSION = 4 };

typedef enum {
    LLMC_OK = 0,
    LLMC_INVALID = 1,      /* an argument is wrong; nothing happened */
    LLMC_NO_MEMORY = 2,    /* host or device memory; nothing stays allocated */
    LLMC_DEVICE = 3,       /* the device reported an error; the model is poisoned */
    LLMC_STATE = 4,        /* the call is right but not now (slot not submitted, no micro-step, ...) */
    LLMC_TIMEOUT = 5,      /* wait_ms passed; call again */
    LLMC_UNAVAILABLE = 6,  /* this backend, this build or this model can't do it; the message says why */
    LLMC_INTERNAL = 7      /* a fault of the engine */
} llmc_status;

enum { LLMC_FP32 = 0, LLMC_BF16 = 1 };                                   /* dtypes and precisions */
enum { LLMC_PARAM = 0, LLMC_GRAD = 1, LLMC_ADAM_M = 2, LLMC_ADAM_V = 3, LLMC_MASTER = 4 };
enum { LLMC_PREFETCH_HOST = 1, LLMC_PREFETCH_L2 = 2 };                   /* bits of options.prefetch */
enum { LLMC_ATTENTION_AUTO = 0, LLMC_ATTENTION_CUDNN = 1, LLMC_ATTENTION_OWN = 2 };
enum { LLMC_SKIP_NONE = 0, LLMC_SKIP_NONFINITE = 1, LLMC_SKIP_LOSS_Z = 2, LLMC_SKIP_NORM_Z = 3 };
enum { LLMC_NUM_PARAMS = 16, LLMC_GUARD_WINDOW = 128, LLMC_COMM_ID_BYTES = 128 };

typedef struct llmc_model llmc_model;

/* Shape of a GPT-2. The vocabulary is padded to a multiple of 128 in memory and in files. */
typedef struct {
    int32_t context;   /* maxT: rows of the position table */
    int32_t vocab;     /* V */
    int32_t layers;    /* L */
    int32_t heads;     /* NH, divides channels */
    int32_t channels;  /* C */
} llmc_config;

/* Everything decided once, at llmc_model_create. Fill with llmc_options_default, then change. */
typedef struct {
    int32_t batch;           /* B: rows of a micro-batch */
    int32_t seq_len;         /* T <= context */
    int32_t device;          /* ordinal among the visible devices */
    int32_t threads;         /* CPU threads of the CPU backend; 0: all */
    int32_t train;           /* 0: parameters alone, and activations of one layer beside all keys and values. llmc_eval, _logits,
                                _prefill and _decode give what they give with 1 (on a GPU to the bit where a row of channels
                                fills whole 16 bytes and cuDNN, if it attends, has the backward too); what needs gradients,
                                moments, master weights, guard or a step's timeline is LLMC_UNAVAILABLE */
    int32_t precision;       /* LLMC_FP32 | LLMC_BF16: parameters, gradients, activations */
    int32_t master_weights;  /* bf16 only: keep an fp32 copy that AdamW updates */
    int32_t tf32;            /* fp32 only: let matrix products use TF32 */
    int32_t recompute;       /* backward recomputes: 0 nothing, 1 GELU, 2 GELU and LayerNorm; nothing to decide without train */
    int32_t gelu_fusion;     /* GELU inside the matrix products, where that is quicker: 0 off, 1 forward, 2 and backward */
    int32_t attention;       /* LLMC_ATTENTION_*; AUTO: cuDNN where it has the shape, but for the backward our own on
                                compute capability 9.0, head size 64, T a multiple of 128 */
    int32_t tune;            /* time the library's matrix-product algorithms at create and keep the fastest;
                                not with deterministic, where every run must choose alike */
    int32_t head_chunks;     /* classify B*T rows in this many pieces; logits memory shrinks alike */
    int32_t deterministic;   /* same bits from every run and every combination of the switches below */
    int32_t streams;         /* 4: a lane each for inputs, targets, compute, loss; 1: all in one */
    int32_t graph;           /* replay the parts of a step as captured graphs */
    int32_t prefetch;        /* bits LLMC_PREFETCH_* */
    int32_t slots;           /* batches in flight, >= 2 */
    int32_t results;         /* result records kept, >= 2: a ticket lives for this many updates */
    int32_t stress;          /* testing: > 0 inserts pseudo-random delays (up to this many us) at every edge */
    int32_t drop_edge;       /* testing: leave out the wait of edge number n of lanes.h; -1: none */
    int32_t rank;            /* 0 .. world-1 */
    int32_t world;           /* processes that train together */
    int32_t zero_stage;      /* 0, or 1: optimizer state sharded over ranks */
    uint64_t seed;           /* stochastic rounding and stress delays */
    uint8_t comm_id[128];    /* world > 1: from rank 0's llmc_comm_id */
} llmc_options;

/* One update's knobs. A limit of 0 is off. */
typedef struct {
    float learning_rate;
    float beta1, beta2, eps;
    float weight_decay;  /* decoupled, 2-D tensors only */
    float grad_clip;     /* largest global gradient norm */
    float max_loss_z;    /* skip the update when the loss is an outlier by this z-score */
    float max_norm_z;    /* same for the gradient norm */
    int64_t step;        /* 1-based count of updates, for the bias correction */
} llmc_hyper;

typedef struct {
    int64_t ticket;
    float loss;        /* mean cross-entropy (nats) over all micro-steps and ranks */
    float grad_norm;   /* before clipping */
    float clip_scale;  /* what the gradients were multiplied by */
    float loss_z;      /* NaN until LLMC_GUARD_WINDOW values were seen before */
    float norm_z;
    int32_t skipped;   /* LLMC_SKIP_*; a non-finite loss or norm always skips */
    float device_ms;   /* first micro-step's start to update's end on the device; NaN if unknown */
} llmc_step_result;

typedef struct {
    int32_t index;
    int32_t reserved;
    int64_t count;     /* B*T */
    int32_t *inputs;   /* (B,T) host memory, yours until llmc_slot_submit */
    int32_t *targets;  /* (B,T) */
} llmc_slot;

typedef struct {
    char name[16];
    int32_t dims;       /* 1..3 */
    int32_t decayed;    /* AdamW weight decay applies */
    int64_t shape[3];
    int64_t count;      /* product of the shape, padding rows included */
    float init_std;     /* 0: init_value everywhere */
    float init_value;
} llmc_param;

/* Bytes. What create would allocate, and what the device has. */
typedef struct {
    int64_t parameters, gradients, optimizer, activations, logits, workspace, batches, total;
    int64_t device_free, device_total;
    int64_t total_by_recompute[3]; /* total, were options.recompute 0, 1, 2 */
} llmc_memory;

typedef struct {
    char name[128];
    char uuid[48];            /* as NVML writes it; empty on a CPU */
    int32_t compute_major, compute_minor;
    int32_t multiprocessors;  /* or CPU threads */
    int32_t clock_khz;        /* 0: unknown */
    int64_t memory_bytes;
    int64_t l2_bytes;
} llmc_device;

/* A piece of work on a lane in the step that was armed; microseconds since that step's start. */
typedef struct {
    char name[24];
    char lane[12];
    int32_t layer;  /* -1: none */
    int32_t reserved;
    double start_us, end_us;
} llmc_span;

typedef struct {
    float temperature;  /* 0: the largest logit */
    int32_t top_k;      /* 0: off */
    float top_p;        /* 1: off */
} llmc_sampling;

/* The outlier guard's memory, so that a resumed run decides alike. */
typedef struct {
    float loss[128], norm[128];  /* rings */
    int64_t loss_seen, norm_seen; /* values ever pushed; ring position is seen % 128 */
} llmc_guard;

/* -- the library ------------------------------------------------------------------------------- */

int32_t llmc_abi_version(void);
/* sizeof of a struct by its name without "llmc_" ("options"); 0 if unknown. A caller compares it
 * with its own idea, so that a stale header is found at load and not in a corrupted run. */
int64_t llmc_struct_size(const char *name);
const char *llmc_last_error(void);  /* this thread's latest message, "" if none; valid until its next call */
const char *llmc_backend(void);     /* "cpu" or "cuda" */
const char *llmc_build_info(void);  /* compiler, architectures, and the library versions loaded */

llmc_status llmc_device_count(int32_t *count);
llmc_status llmc_device_info(int32_t device, llmc_device *info);
/* [sync] rank 0 makes it, every rank passes it in options.comm_id. LLMC_UNAVAILABLE on one-device builds. */
llmc_status llmc_comm_id(uint8_t *id, int64_t bytes);

/* -- a model ----------------------------------------------------------------------------------- */

/* What options.tune has found in this process, a line a matrix product, for a later process to give back: it is
 * then not timed again. Lines name device and library version, and count for those alone. "" on a CPU. Valid
 * until this thread's next call. */
const char *llmc_tuning_export(void);
/* Before llmc_model_create. LLMC_INVALID for text that export did not write; nothing of it is then taken. */
llmc_status llmc_tuning_import(const char *text);
void llmc_options_default(llmc_options *options);
void llmc_hyper_default(llmc_hyper *hyper);
llmc_status llmc_memory_plan(const llmc_config *config, const llmc_options *options, llmc_memory *plan);
/* [sync] Allocates all it will ever need; parameters, gradients and moments are zero. */
llmc_status llmc_model_create(const llmc_config *config, const llmc_options *options, llmc_model **model);
/* [sync] Waits for enqueued work, then frees. */
void llmc_model_free(llmc_model *model);
llmc_status llmc_model_options(llmc_model *model, llmc_options *options);  /* as resolved by create */
/* [sync] until all enqueued work is done. */
llmc_status llmc_synchronize(llmc_model *model);
/* Notes the engine made for its user (a fallback and why), each once, newline-separated; "" if none.
 * Valid until the model's next call. */
const char *llmc_model_notes(llmc_model *model);

/* The table of the 16 tensors in file order; needs no model. */
llmc_status llmc_param_info(const llmc_config *config, int32_t index, llmc_param *info);
/* [sync] kind LLMC_PARAM.., host buffer of exactly count * sizeof(dtype) bytes. Values are widened
 * exactly or rounded to nearest even. Writing LLMC_PARAM also sets the master copy. Gradients read
 * between micro-steps and update are those of the accumulated mean. */
llmc_status llmc_tensor_read(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, void *buffer, int64_t bytes);
llmc_status llmc_tensor_write(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, const void *buffer, int64_t bytes);

/* -- batches ----------------------------------------------------------------------------------- */

/* [sync] Waits up to wait_ms (-1: for ever) for a slot whose host memory may be overwritten. */
llmc_status llmc_slot_acquire(llmc_model *model, int32_t wait_ms, llmc_slot *slot);
/* [async] Checks every token against the vocabulary and starts the upload; the host memory is the
 * engine's until a later acquire hands the slot out again. On an error the slot stays acquired. */
llmc_status llmc_slot_submit(llmc_model *model, int32_t slot);
/* Gives an acquired or submitted slot back unused. */
llmc_status llmc_slot_release(llmc_model *model, int32_t slot);

/* -- training ---------------------------------------------------------------------------------- */

/* [async] Forward and backward of a submitted slot, micro-step i of n (0-based, in order). The first
 * one assigns the gradients, the others add; all are scaled to the mean over n*B*T*world tokens.
 * Consumes the slot. */
llmc_status llmc_micro_step(llmc_model *model, int32_t slot, int32_t i, int32_t n);
/* [async] After the last micro-step: norm, clip, guard, AdamW. The ticket names the result;
 * tickets count from 0. */
llmc_status llmc_update(llmc_model *model, const llmc_hyper *hyper, int64_t *ticket);
/* [sync] Waits up to wait_ms (-1: for ever, 0: only looks), beside a GPU the first 20 ms without sleeping.
 * LLMC_STATE for a ticket whose record was overwritten (older than options.results updates) or never issued. */
llmc_status llmc_result(llmc_model *model, int64_t ticket, int32_t wait_ms, llmc_step_result *result);

/* [sync] Mean loss of a submitted slot without training; losses (B,T) per position or NULL. Consumes the slot. */
llmc_status llmc_eval(llmc_model *model, int32_t slot, float *losses, float *mean);
/* [sync] Logits (B,T,V) of a submitted slot, padding left out; bytes = B*T*V*4. Consumes the slot. */
llmc_status llmc_logits(llmc_model *model, int32_t slot, float *logits, int64_t bytes);

/* State of the stochastic-rounding generator: now, and before the last update. */
llmc_status llmc_rng_get(llmc_model *model, uint64_t *now, uint64_t *before);
llmc_status llmc_rng_set(llmc_model *model, uint64_t now);
llmc_status llmc_guard_get(llmc_model *model, llmc_guard *guard); /* [sync] */
llmc_status llmc_guard_set(llmc_model *model, const llmc_guard *guard);

/* -- a snapshot: the training state of one moment, to be saved while training goes on -------------- */

/* [async] Copies parameters, moments, master weights and guard aside on the device, as the updates enqueued
 * so far leave them. The copy's memory is made by the first call and kept until llmc_model_free; it is in no
 * llmc_memory. LLMC_NO_MEMORY, with nothing changed, where less than 512 MiB (or the copy's own size, if that
 * is less) would stay free beside it. LLMC_STATE while an earlier snapshot isn't released. */
llmc_status llmc_snapshot_take(llmc_model *model);
/* [sync] llmc_tensor_read of the snapshot; it keeps no gradients. LLMC_STATE when there is none. */
llmc_status llmc_snapshot_read(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, void *buffer, int64_t bytes);
llmc_status llmc_snapshot_guard(llmc_model *model, llmc_guard *guard); /* [sync] */
/* The snapshot was read: the next one may take its place. Without one nothing happens. */
llmc_status llmc_snapshot_release(llmc_model *model);

/* -- generation -------------------------------------------------------------------------------- */

/* [sync] Runs tokens (rows,n), 1 <= rows <= B, 1 <= n <= T, keeps their keys and values, and writes
 * the last position's logits (rows,V). Training or evaluation overwrites what was kept. */
llmc_status llmc_prefill(llmc_model *model, const int32_t *tokens, int32_t rows, int32_t n, float *logits);
/* [sync] One more token per row (rows as prefilled); LLMC_STATE when T positions are full or nothing is kept. */
llmc_status llmc_decode(llmc_model *model, const int32_t *tokens, float *logits);
/* Draws from logits (V). state is advanced (SplitMix64); NaN or no finite logit is LLMC_INVALID. Needs no model. */
llmc_status llmc_sample(const float *logits, int32_t vocab, const llmc_sampling *how, uint64_t *state, int32_t *token);

/* -- looking inside ---------------------------------------------------------------------------- */

/* Records the spans of the next whole step (micro-step 0 to update); costs other steps nothing. */
llmc_status llmc_timeline_arm(llmc_model *model);
/* [sync] Copies up to capacity spans, *count says how many there are. LLMC_STATE before a step was recorded. */
llmc_status llmc_timeline_read(llmc_model *model, llmc_span *spans, int32_t capacity, int32_t *count);

/* ---- end ABI ---- */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
