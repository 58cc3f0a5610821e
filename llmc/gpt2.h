// gpt2.h - the model that train_gpt2.cu trains: what it keeps, and where each of its parts is written.
#pragma once
#include <memory>
#include <vector>

#include "device.h"
#include "error.h"
#include "model.h"
#include "ops.h"

namespace llmc {

// Activations. A layer's slice of (L, N, k) starts at l*N*k; `row` moves to a later row of the batch. K is L, or 1 in a
// model that isn't trained.
template <class X>
struct Activations {
    X *residual;         // (1+2K or 2, N, C): after the embedding, then after attention and MLP of each layer
    X *ln1, *ln2;        // (K or 1, N, C): 1 when recomputed
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (K, N)
    X *qkv;              // (L, N, 3C); generation's cache of keys and values too
    float *lse;          // (K, N*NH)
    X *att;              // (K, N, C)
    X *fc;               // (K, N, 4C) before GELU
    X *gelu;             // (K or 1, N, 4C)
    X *lnf;              // (N, C)
    float *lnf_mean, *lnf_rstd;  // (N)
    X *logits;           // (chunk rows, Vp), becomes dlogits in place
    float *token_losses; // (N)
    X *branch;           // (N, C): the gradient of what enters a branch; this and the next two only to train
    X *wide;             // (N, 4C): backward's gradient of qkv or fc
    X *dresidual;        // (N, C)
    void *scratch;       // for one op at a time on COMPUTE
};

template <class X>
class GPT2 final : public Model {
  public:
    // gpt2_memory.h
    GPT2(const llmc_config &c, const llmc_options &o, bool plan_only);
    ~GPT2() override;
    llmc_memory plan() const;

    // train_gpt2.cu
    void micro_step(int slot, int i, int n) override;
    int64_t update(const llmc_hyper &hyper) override;
    llmc_step_result result(int64_t ticket, int wait_ms) override;
    float eval(int slot, float *losses) override;
    void logits(int slot, float *out, int64_t bytes) override;
    void arm_timeline() override {
        require_trained("steps to record");
        if (micro_steps_done_ != 0) fail(LLMC_STATE, "a step is under way; arm before its first micro-step");
        timeline_armed_ = true;
    }
    std::vector<llmc_span> read_timeline() override {
        if (!timeline_taken_) fail(LLMC_STATE, "no step was recorded: arm, then run a whole step");
        lanes.synchronize();
        return lanes.read_timeline();
    }

    // generate_gpt2.h
    void prefill(const int *tokens, int rows, int n, float *logits) override;
    void decode(const int *tokens, float *logits) override;

    // gpt2_tensors.h
    void read_tensor(int kind, int index, int dtype, void *buffer, int64_t bytes) override;
    void write_tensor(int kind, int index, int dtype, const void *buffer, int64_t bytes) override;
    void read_guard(llmc_guard *guard) override;
    void write_guard(const llmc_guard &guard) override;
    void take_snapshot() override;
    void read_snapshot(int kind, int index, int dtype, void *buffer, int64_t bytes) override;
    void read_snapshot_guard(llmc_guard *guard) override;

  private:
    const int B = options.batch, T = options.seq_len, N = B * T;
    const int C = config.channels, L = config.layers, NH = config.heads;
    const int V = config.vocab, Vp = int(padded_vocab(config.vocab));
    const int chunk_rows_ = (N + options.head_chunks - 1) / options.head_chunks;
    const ParamTable table_ = param_table(config);
    const ParamLayout layout_ = param_layout(table_, config.layers);
    const int64_t P = layout_.total;
    const AttentionPlan attention_{options.deterministic != 0, options.attention, options.train != 0};

    struct PinnedFree {
        void operator()(void *p) const { pinned_free(p); }
    };
    Arena arena_;
    X *params_ = nullptr, *grads_ = nullptr;
    float *master_ = nullptr, *m_ = nullptr, *v_ = nullptr;
    Activations<X> a_{};
    int *generation_tokens_ = nullptr;  // (B, T) of a prefill; a position and (B) of a decoded token
    float *mean_loss_ = nullptr, *eval_loss_ = nullptr, *norm_squared_ = nullptr;
    llmc_guard *guard_ = nullptr;
    StepParams *step_params_ = nullptr;
    llmc_step_result *records_ = nullptr;  // (results)
    std::unique_ptr<llmc_step_result[], PinnedFree> host_results_;

    int64_t next_ticket_ = 0;
    int micro_steps_done_ = 0, micro_steps_of_ = 0;
    int cached_rows_ = 0, cached_tokens_ = 0;  // generation: what qkv holds
    bool timeline_armed_ = false, timeline_ = false, timeline_taken_ = false;

    Lane &compute() { return lanes[COMPUTE]; }
    int record_of(int64_t ticket) const { return int(ticket % options.results); }
    X *param(ParamId id, int l = 0) const { return params_ + layout_.offset[id] + l * layout_.per_layer[id]; }
    X *grad(ParamId id, int l = 0) const { return grads_ + layout_.offset[id] + l * layout_.per_layer[id]; }
    template <class E>
    E *layer(E *base, int l, int64_t width) const { return base + int64_t(l) * N * width; }
    // The slice that layer l writes: its own, for the backward to read, or the one that all layers share.
    int kept(int l) const { return options.train ? l : 0; }
    // Without training two take turns. In place it would be less, but the library rounds a product added in place otherwise.
    X *residual(int i) const { return layer(a_.residual, options.train ? i : i % 2, C); }
    X *ln1(int l) const { return layer(a_.ln1, options.recompute >= 2 ? 0 : kept(l), C); }
    X *ln2(int l) const { return layer(a_.ln2, options.recompute >= 2 ? 0 : kept(l), C); }
    X *gelu(int l) const { return layer(a_.gelu, options.recompute >= 1 ? 0 : kept(l), 4 * C); }
    // The LayerNorm that reads layer l's output: the next layer's first, or the final one.
    const X *next_norm_w(int l) const { return l + 1 < L ? param(LN1W, l + 1) : param(LNFW); }
    const X *next_norm_b(int l) const { return l + 1 < L ? param(LN1B, l + 1) : param(LNFB); }
    void require_trained(const char *missing) const {
        if (!options.train) fail(LLMC_UNAVAILABLE, "this model was made with options.train = 0: it has no %s", missing);
    }

    // gpt2_memory.h
    void lay_out();
    std::vector<LinearUse> linear_uses() const;
    [[noreturn]] void explain_no_memory(const Error &e);

    // train_gpt2.cu
    void forward_batch(int slot);
    void forward(const int *tokens, int64_t first, int rows, int n);
    void fc_forward(const X *inp, int l, X *fc, X *activated, int count);
    void prefetch_next_layer(int l);
    void head(const int *targets, float dloss, bool train, Into into);
    void download_logits(const X *normed, int rows, float *out);
    void backward(Into into);

    // generate_gpt2.h
    void check_generation_tokens(const int *tokens, int64_t count) const;

    // gpt2_tensors.h
    struct Tensor {
        char *device;
        int64_t count;
        int64_t width;  // bytes per element
    };
    Tensor tensor(int kind, int index, int dtype, int64_t bytes) const;
    void write_converted(const Tensor &t, int dtype, const void *buffer);
};

}  // namespace llmc
