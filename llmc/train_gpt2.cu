// train_gpt2.cu - GPT-2 training, written once. nvcc compiles it for the GPU, the C++ compiler for the
// CPU; all it knows of a device is in ops.h (the mathematics) and lanes.h (who waits for whom).
//
//   forward    x = wte[token] + wpe[position]
//              each layer:  x += attproj(attention(qkv(LN1(x))));  x += fcproj(gelu(fc(LN2(x))))
//              logits = LNf(x) wte^T
//   backward   the same, last to first; activations that `recompute` left out are made again
//   update     global norm -> clip, guard -> AdamW, all decided on the device
//
// N = B*T rows; a residual stream x is kept after every addition because LayerNorm's backward needs it. A model that
// isn't trained (options.train = 0) keeps of all activations what the next layer reads, and qkv for generation.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "convert.h"
#include "error.h"
#include "model.h"
#include "ops.h"

namespace llmc {

namespace {

// SplitMix64: one well-mixed 64-bit value per state, any state is fine.
uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Activations. A layer's slice of (L, N, k) starts at l*N*k; `row` moves to a later row of the batch. K is L, or 1 in a
// model that isn't trained.
template <class X>
struct Activations {
    X *residual;         // (1+2K or 1, N, C): after the embedding, then after attention and MLP of each layer
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
    GPT2(const llmc_config &c, const llmc_options &o, bool plan_only) : Model(c, o) {
        const auto fallback = attention_prepare<X>(lanes[COMPUTE], attention_, B, T, C, NH);
        if (!fallback.empty()) lanes.note(fallback);
        lay_out();
        if (plan_only) return;
        try {
            arena_.allocate();
        } catch (const Error &e) {
            if (e.status == LLMC_NO_MEMORY) explain_no_memory(e);
            throw;
        }
        // Nothing is in the activations yet, so they lend their memory to the timing of matrix products.
        const size_t lent = size_t(reinterpret_cast<char *>(a_.token_losses) - reinterpret_cast<char *>(a_.residual));
        linear_choose<X>(compute(), linear_uses(), options.tune != 0, a_.residual, lent);
        if (const auto said = linear_take_notes(compute()); !said.empty()) lanes.note(said);
        batches.open();
        const auto zero = [&](void *memory, size_t bytes) { fill_zero(lanes[COMPUTE], memory, bytes); };
        zero(params_, sizeof(X) * P);
        if (options.train) {
            host_results_.reset(static_cast<llmc_step_result *>(pinned_alloc(sizeof(llmc_step_result) * size_t(options.results))));
            zero(grads_, sizeof(X) * P);
            zero(m_, sizeof(float) * P);
            zero(v_, sizeof(float) * P);
            if (master_) zero(master_, sizeof(float) * P);
            zero(guard_, sizeof *guard_);
            zero(records_, sizeof *records_ * size_t(options.results));  // their padding travels to the host too
        }
        lanes.synchronize();
    }
    ~GPT2() override {
        try {
            lanes.synchronize();  // nothing may still use the arena
        } catch (const Error &) {  // a poisoned device has nothing left to wait for
        }
    }

    // ---- the step ----------------------------------------------------------------------------

    void micro_step(int slot, int i, int n) override {
        require_trained("gradients");
        batches.require_submitted(slot);
        if (n < 1) fail(LLMC_INVALID, "n is %d micro-steps, expected at least 1", n);
        // i = 0 is always in order: it assigns, so what an interrupted caller left half done is dropped.
        if (i < 0 || i >= n || (i > 0 && (i != micro_steps_done_ || n != micro_steps_of_))) {
            fail(LLMC_STATE, "micro-step %d of %d is out of order: %d of %d are done", i, n, micro_steps_done_, i ? micro_steps_of_ : n);
        }
        if (i == 0) {
            timeline_ = timeline_armed_;
            if (timeline_) lanes.record_timeline(true);
            lanes.mark_step_start(record_of(next_ticket_));
        }
        const Into into = i == 0 ? Into::ASSIGN : Into::ADD;
        forward_batch(slot);
        lanes.await(TARGETS_READY, slot);
        lanes.await(MEAN_LOSS_READY);
        lanes.run({GraphKey::HEAD, slot, i == 0, n}, options.slots,
                  [&](int slot) { head(batches.targets(slot), 1.0f / (float(N) * float(n)), true, into); });
        lanes.signal(TARGETS_FREE, slot);
        lanes.signal(TOKEN_LOSSES_READY);
        lanes.run({GraphKey::BACKWARD, slot, i == 0}, options.slots, [&](int slot) {
            backward(into);
            const auto span = lanes.span(COMPUTE, "embedding bwd");
            embedding_backward(compute(), grad(WTE), grad(WPE), a_.dresidual, batches.inputs(slot), batches.index(slot), B, T, C, V,
                               config.context, into);
        });
        lanes.signal(INPUTS_FREE, slot);
        // The mean is made beside the backward pass; compute waits for it before the gate, and before the
        // next classifier overwrites what it reads.
        lanes.await(TOKEN_LOSSES_READY);
        {
            const auto span = lanes.span(LOSS, "mean loss");
            mean_loss(lanes[LOSS], mean_loss_, a_.token_losses, 1.0f / (float(N) * float(n)), N, into);
        }
        lanes.signal(MEAN_LOSS_READY);
        batches.consumed(slot);
        micro_steps_done_ = i + 1;
        micro_steps_of_ = n;
    }

    int64_t update(const llmc_hyper &hyper) override {
        require_trained("gradients or moments");
        if (micro_steps_done_ == 0 || micro_steps_done_ != micro_steps_of_) {
            fail(LLMC_STATE, "update needs a finished accumulation: %d of %d micro-steps are done", micro_steps_done_, micro_steps_of_);
        }
        check_hyper(hyper);
        const int64_t ticket = next_ticket_;
        const int r = record_of(ticket);
        StepParams params{};
        params.hyper = hyper;
        params.bias1 = float(1.0 - std::pow(double(hyper.beta1), double(hyper.step)));
        params.bias2 = float(1.0 - std::pow(double(hyper.beta2), double(hyper.step)));
        params.rounding = mix64(rounding_now);
        params.ticket = ticket;
        store_step_params(compute(), step_params_, params);
        lanes.await(RESULT_ON_HOST, r);
        lanes.await(MEAN_LOSS_READY);
        lanes.run({GraphKey::UPDATE, r}, options.results, [&](int r) {
            {
                const auto span = lanes.span(COMPUTE, "gradient norm");
                global_norm_squared(compute(), norm_squared_, a_.scratch, grads_, P);
            }
            {
                const auto span = lanes.span(COMPUTE, "gate");
                gate(compute(), records_ + r, guard_, step_params_, mean_loss_, norm_squared_);
            }
            const auto span = lanes.span(COMPUTE, "adamw");
            adamw(compute(), params_, master_, m_, v_, grads_, table_, layout_, step_params_, records_ + r);
        });
        lanes.signal(RESULT_READY, r);
        lanes.mark_step_end(r);
        lanes.await(RESULT_READY, r);
        {
            const auto span = lanes.span(LOSS, "download result");
            copy_to_host(lanes[LOSS], &host_results_[r], records_ + r, sizeof(llmc_step_result));
        }
        lanes.signal(RESULT_ON_HOST, r);
        if (timeline_) {
            lanes.record_timeline(false);
            timeline_ = timeline_armed_ = false;
            timeline_taken_ = true;
        }
        rounding_before = rounding_now;
        rounding_now += 0x9e3779b97f4a7c15ull;
        micro_steps_done_ = 0;
        next_ticket_++;
        return ticket;
    }

    llmc_step_result result(int64_t ticket, int wait_ms) override {
        const int64_t oldest = std::max<int64_t>(0, next_ticket_ - options.results);
        if (ticket < 0 || ticket >= next_ticket_) fail(LLMC_STATE, "ticket %lld was never issued; the next is %lld", (long long)ticket, (long long)next_ticket_);
        if (ticket < oldest) {
            fail(LLMC_STATE, "ticket %lld was overwritten: options.results = %d keeps %lld and later", (long long)ticket, options.results, (long long)oldest);
        }
        const int r = record_of(ticket);
        if (!lanes.host_await(RESULT_ON_HOST, r, wait_ms)) fail(LLMC_TIMEOUT, "the result of ticket %lld did not arrive within %d ms", (long long)ticket, wait_ms);
        llmc_step_result out = host_results_[r];
        out.device_ms = lanes.step_ms(r);
        return out;
    }

    // ---- without training --------------------------------------------------------------------

    float eval(int slot, float *losses) override {
        batches.require_submitted(slot);
        forward_batch(slot);
        lanes.signal(INPUTS_FREE, slot);
        lanes.await(TARGETS_READY, slot);
        lanes.await(MEAN_LOSS_READY);
        lanes.run({GraphKey::EVAL_HEAD, slot}, options.slots, [&](int slot) {
            head(batches.targets(slot), 0, false, Into::ASSIGN);
            mean_loss(compute(), eval_loss_, a_.token_losses, 1.0f / float(N), N, Into::ASSIGN);
        });
        lanes.signal(TARGETS_FREE, slot);
        batches.consumed(slot);
        float mean;
        copy_to_host_now(compute(), &mean, eval_loss_, sizeof mean);
        if (losses) copy_to_host_now(compute(), losses, a_.token_losses, sizeof(float) * size_t(N));
        return mean;
    }

    void logits(int slot, float *out, int64_t bytes) override {
        batches.require_submitted(slot);
        if (bytes != int64_t(N) * V * 4) fail(LLMC_INVALID, "bytes is %lld, expected B*T*V*4 = %lld", (long long)bytes, (long long)(int64_t(N) * V * 4));
        forward_batch(slot);
        lanes.signal(INPUTS_FREE, slot);
        lanes.await(TARGETS_READY, slot);  // unread, but the next upload must follow this one
        lanes.signal(TARGETS_FREE, slot);
        batches.consumed(slot);
        for (int row = 0; row < N; row += chunk_rows_) {
            download_logits(a_.lnf + int64_t(row) * C, std::min(chunk_rows_, N - row), out + int64_t(row) * V);
        }
    }

    // ---- generation --------------------------------------------------------------------------

    void prefill(const int *tokens, int rows, int n, float *logits) override {
        if (rows < 1 || rows > B) fail(LLMC_INVALID, "rows is %d, expected 1 to batch = %d", rows, B);
        if (n < 1 || n > T) fail(LLMC_INVALID, "n is %d tokens, expected 1 to seq_len = %d", n, T);
        check_generation_tokens(tokens, int64_t(rows) * n);
        cached_rows_ = 0;
        copy_to_device_now(compute(), generation_tokens_, tokens, sizeof(int) * size_t(rows) * size_t(n));
        // Row by row: each keeps the place it has in a full batch, so that decode finds keys and values in qkv.
        for (int row = 0; row < rows; row++) {
            const int64_t first = int64_t(row) * T;
            forward(generation_tokens_ + int64_t(row) * n, first, 1, n);
            download_logits(a_.lnf + (first + n - 1) * C, 1, logits + int64_t(row) * V);
        }
        cached_rows_ = rows;
        cached_tokens_ = n;
    }

    void decode(const int *tokens, float *logits) override {
        if (cached_rows_ == 0) fail(LLMC_STATE, "no keys and values are kept: call llmc_prefill first (training and evaluation overwrite them)");
        if (cached_tokens_ >= T) fail(LLMC_STATE, "all %d positions are full: call llmc_prefill with a shorter context", T);
        const int rows = cached_rows_;
        check_generation_tokens(tokens, rows);
        std::vector<int> input{cached_tokens_};  // the position, then the tokens
        input.insert(input.end(), tokens, tokens + rows);
        copy_to_device_now(compute(), generation_tokens_, input.data(), sizeof(int) * input.size());
        const int *const position = generation_tokens_, *const newest = generation_tokens_ + 1;
        // qkv and att have been read when fc_forward writes there.
        X *x = residual(0), *normed = a_.lnf, *qkv = a_.fc, *att = a_.fc + int64_t(rows) * 3 * C;
        lanes.run({GraphKey::DECODE, 0, 0, rows}, 1, [&](int) {
            embedding_forward(compute(), x, newest, param(WTE), param(WPE), rows, 1, C, position);
            layernorm_forward(compute(), normed, a_.lnf_mean, a_.lnf_rstd, x, param(LN1W, 0), param(LN1B, 0), rows, C);
            for (int l = 0; l < L; l++) {
                linear_forward(compute(), qkv, normed, param(QKVW, l), param(QKVB, l), rows, C, 3 * C);
                attention_decode(compute(), att, layer(a_.qkv, l, 3 * C), qkv, rows, T, position, C, NH);
                linear_residual_forward(compute(), x, x, att, param(ATTPROJW, l), param(ATTPROJB, l), rows, C, C);
                layernorm_forward(compute(), normed, a_.lnf_mean, a_.lnf_rstd, x, param(LN2W, l), param(LN2B, l), rows, C);
                fc_forward(normed, l, a_.fc, a_.gelu, rows);
                linear_residual_forward(compute(), x, x, a_.gelu, param(FCPROJW, l), param(FCPROJB, l), rows, 4 * C, C);
                layernorm_forward(compute(), normed, a_.lnf_mean, a_.lnf_rstd, x, next_norm_w(l), next_norm_b(l), rows, C);
            }
        });
        for (int row = 0; row < rows; row += chunk_rows_) {
            download_logits(normed + int64_t(row) * C, std::min(chunk_rows_, rows - row), logits + int64_t(row) * V);
        }
        cached_tokens_++;
    }

    // ---- tensors -----------------------------------------------------------------------------

    void read_tensor(int kind, int index, int dtype, void *buffer, int64_t bytes) override {
        const Tensor t = tensor(kind, index, dtype, bytes);
        lanes.synchronize();
        std::vector<char> staged;
        for (int64_t done = 0; done < t.count; done += kPiece) {
            const int64_t n = std::min(kPiece, t.count - done);
            staged.resize(size_t(n) * t.width);
            copy_to_host_now(compute(), staged.data(), t.device + done * t.width, staged.size());
            convert(static_cast<char *>(buffer) + done * width(dtype), dtype, staged.data(), t.width, n);
        }
    }

    void write_tensor(int kind, int index, int dtype, const void *buffer, int64_t bytes) override {
        const Tensor t = tensor(kind, index, dtype, bytes);
        lanes.synchronize();
        cached_rows_ = 0;
        write_converted(t, dtype, buffer);
        if (kind == LLMC_PARAM && master_) write_converted(tensor(LLMC_MASTER, index, dtype, bytes), dtype, buffer);
        // Padding rows of the token table stay zero whatever the caller had there: the classifier relies on it.
        if (index == WTE) {
            const auto clear = [&](const Tensor &w) { fill_zero(compute(), w.device + int64_t(V) * C * w.width, size_t(Vp - V) * C * w.width); };
            clear(t);
            if (kind == LLMC_PARAM && master_) clear(tensor(LLMC_MASTER, index, dtype, bytes));
        }
        lanes.synchronize();
    }

    void read_guard(llmc_guard *guard) override {
        require_trained("guard");
        copy_to_host_now(compute(), guard, guard_, sizeof *guard);
    }
    void write_guard(const llmc_guard &guard) override {
        require_trained("guard");
        if (guard.loss_seen < 0 || guard.norm_seen < 0) fail(LLMC_INVALID, "guard counts are %lld and %lld, expected >= 0", (long long)guard.loss_seen, (long long)guard.norm_seen);
        copy_to_device_now(compute(), guard_, &guard, sizeof guard);
    }

    void take_snapshot() override {
        require_trained("training state to take a snapshot of");
        const auto bytes = [](int64_t count, size_t width) { return size_t(count) * width; };
        snapshot.take({{params_, bytes(P, sizeof(X))}, {m_, bytes(P, 4)}, {v_, bytes(P, 4)}, {master_, master_ ? bytes(P, 4) : 0}, {guard_, sizeof *guard_}});
    }
    void read_snapshot(int kind, int index, int dtype, void *buffer, int64_t bytes) override {
        if (kind == LLMC_GRAD) fail(LLMC_INVALID, "kind is LLMC_GRAD, but a snapshot keeps no gradients");
        const Tensor t = tensor(kind, index, dtype, bytes);
        char *to = static_cast<char *>(buffer);
        snapshot.read(t.device, t.count * t.width, [&](const char *piece, int64_t n) {
            convert(to, dtype, piece, t.width, n / t.width);
            to += n / t.width * width(dtype);
        });
    }
    void read_snapshot_guard(llmc_guard *guard) override {
        snapshot.read(guard_, sizeof *guard, [&](const char *piece, int64_t n) { std::memcpy(guard, piece, size_t(n)); });
    }

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

    llmc_memory plan() const {
        llmc_memory p{};
        p.parameters = arena_.bytes(Purpose::PARAMETERS);
        p.gradients = arena_.bytes(Purpose::GRADIENTS);
        p.optimizer = arena_.bytes(Purpose::OPTIMIZER);
        p.activations = arena_.bytes(Purpose::ACTIVATIONS);
        p.logits = arena_.bytes(Purpose::LOGITS);
        p.workspace = arena_.bytes(Purpose::WORKSPACE);
        p.batches = arena_.bytes(Purpose::BATCHES);
        p.total = arena_.total();
        device_memory(&p.device_free, &p.device_total);
        return p;
    }

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
    X *residual(int i) const { return layer(a_.residual, kept(i), C); }
    X *ln1(int l) const { return layer(a_.ln1, options.recompute >= 2 ? 0 : kept(l), C); }
    X *ln2(int l) const { return layer(a_.ln2, options.recompute >= 2 ? 0 : kept(l), C); }
    X *gelu(int l) const { return layer(a_.gelu, options.recompute >= 1 ? 0 : kept(l), 4 * C); }
    // The LayerNorm that reads layer l's output: the next layer's first, or the final one.
    const X *next_norm_w(int l) const { return l + 1 < L ? param(LN1W, l + 1) : param(LNFW); }
    const X *next_norm_b(int l) const { return l + 1 < L ? param(LN1B, l + 1) : param(LNFB); }

    void lay_out() {
        const bool trains = options.train != 0;
        const int64_t n = N, l = trains ? L : 1, c = C;
        const int64_t kept_norms = options.recompute >= 2 ? 1 : l, kept_gelus = options.recompute >= 1 ? 1 : l;
        using P_ = Purpose;
        arena_.want(&params_, P, P_::PARAMETERS);
        if (trains) {
            arena_.want(&grads_, P, P_::GRADIENTS);
            arena_.want(&m_, P, P_::OPTIMIZER);
            arena_.want(&v_, P, P_::OPTIMIZER);
            if (sizeof(X) < 4 && options.master_weights) arena_.want(&master_, P, P_::OPTIMIZER);
        }
        // Without a backward one buffer is enough: each addition writes where it has read.
        arena_.want(&a_.residual, (trains ? 1 + 2 * l : 1) * n * c, P_::ACTIVATIONS);
        arena_.want(&a_.ln1, kept_norms * n * c, P_::ACTIVATIONS);
        arena_.want(&a_.ln2, kept_norms * n * c, P_::ACTIVATIONS);
        for (float **statistic : {&a_.ln1_mean, &a_.ln1_rstd, &a_.ln2_mean, &a_.ln2_rstd}) arena_.want(statistic, l * n, P_::ACTIVATIONS);
        arena_.want(&a_.qkv, int64_t(L) * n * 3 * c, P_::ACTIVATIONS);
        arena_.want(&a_.lse, l * n * NH, P_::ACTIVATIONS);
        arena_.want(&a_.att, l * n * c, P_::ACTIVATIONS);
        arena_.want(&a_.fc, l * n * 4 * c, P_::ACTIVATIONS);
        arena_.want(&a_.gelu, kept_gelus * n * 4 * c, P_::ACTIVATIONS);
        arena_.want(&a_.lnf, n * c, P_::ACTIVATIONS);
        arena_.want(&a_.lnf_mean, n, P_::ACTIVATIONS);
        arena_.want(&a_.lnf_rstd, n, P_::ACTIVATIONS);
        arena_.want(&a_.logits, int64_t(chunk_rows_) * Vp, P_::LOGITS);
        arena_.want(&a_.token_losses, n, P_::ACTIVATIONS);
        size_t scratch = attention_scratch_bytes<X>(compute(), attention_, B, T, C, NH);
        if (trains) {
            scratch = std::max({scratch, layernorm_scratch_bytes(N, C), linear_scratch_bytes(N, 4 * C), global_norm_scratch_bytes()});
            arena_.want(&a_.branch, n * c, P_::WORKSPACE);
            arena_.want(&a_.wide, n * 4 * c, P_::WORKSPACE);
            arena_.want(&a_.dresidual, n * c, P_::WORKSPACE);
            for (float **scalar : {&mean_loss_, &norm_squared_}) arena_.want(scalar, 1, P_::WORKSPACE);
            arena_.want(&guard_, 1, P_::WORKSPACE);
            arena_.want(&step_params_, 1, P_::WORKSPACE);
            arena_.want(&records_, options.results, P_::WORKSPACE);
        }
        arena_.want_bytes(&a_.scratch, scratch, P_::WORKSPACE);
        arena_.want(&generation_tokens_, n + 1, P_::WORKSPACE);
        arena_.want(&eval_loss_, 1, P_::WORKSPACE);
        batches.lay_out(arena_);
    }

    // Every matrix product of a step, or of its forward.
    std::vector<LinearUse> linear_uses() const {
        using Op = LinearOp;
        const Op fc = options.gelu_fusion >= 1 ? Op::GELU_FORWARD : Op::FORWARD;
        const Op dfc = options.gelu_fusion >= 2 ? Op::GELU_BACKWARD_INPUT : Op::BACKWARD_INPUT;
        const Into no = Into::ASSIGN;
        std::vector<LinearUse> uses = {
            {Op::FORWARD, N, C, 3 * C, true, no}, {Op::RESIDUAL_FORWARD, N, C, C, true, no}, {fc, N, C, 4 * C, true, no},
            {Op::RESIDUAL_FORWARD, N, 4 * C, C, true, no}, {Op::FORWARD, chunk_rows_, C, Vp, false, no},
        };
        if (!options.train) return uses;
        uses.insert(uses.end(), {
            {Op::BACKWARD_INPUT, N, C, 3 * C, false, no}, {Op::BACKWARD_INPUT, N, C, C, false, no}, {Op::BACKWARD_INPUT, N, C, 4 * C, false, no},
            {dfc, N, 4 * C, C, dfc == Op::GELU_BACKWARD_INPUT, no}, {Op::BACKWARD_INPUT, chunk_rows_, C, Vp, false, no},
        });
        for (const Into into : {Into::ASSIGN, Into::ADD}) {
            uses.push_back({Op::BACKWARD_WEIGHT, N, C, 3 * C, false, into});
            uses.push_back({Op::BACKWARD_WEIGHT, N, C, C, false, into});
            uses.push_back({Op::BACKWARD_WEIGHT, N, C, 4 * C, false, into});
            uses.push_back({Op::BACKWARD_WEIGHT, N, 4 * C, C, false, into});
            uses.push_back({Op::BACKWARD_WEIGHT, chunk_rows_, C, Vp, false, into});
        }
        return uses;
    }

    [[noreturn]] void explain_no_memory(const Error &e) {
        const char *advice = options.train && options.recompute < 2 ? "options.recompute = 2, " : "";
        fail(LLMC_NO_MEMORY, "%s; to fit: %soptions.head_chunks > %d, or a batch below %d", e.what(), advice, options.head_chunks, B);
    }

    // ---- forward -----------------------------------------------------------------------------

    void forward_batch(int slot) {
        cached_rows_ = 0;
        lanes.await(INPUTS_READY, slot);
        lanes.run({GraphKey::FORWARD, slot}, options.slots, [&](int slot) { forward(batches.inputs(slot), 0, B, T); });
    }

    // Rows [first, first + rows*n) of the activations from tokens (rows, n). Training: first 0, B, T.
    void forward(const int *tokens, int64_t first, int rows, int n) {
        const int count = rows * n;
        const auto at = [&](auto *base, int64_t width) { return base + first * width; };
        {
            const auto span = lanes.span(COMPUTE, "embedding");
            embedding_forward(compute(), at(residual(0), C), tokens, param(WTE), param(WPE), rows, n, C, nullptr);
        }
        for (int l = 0; l < L; l++) {
            const int k = kept(l);
            X *qkv = at(layer(a_.qkv, l, 3 * C), 3 * C), *att = at(layer(a_.att, k, C), C);
            X *fc = at(layer(a_.fc, k, 4 * C), 4 * C), *activated = at(gelu(l), 4 * C);
            X *before = at(residual(2 * l), C), *between = at(residual(2 * l + 1), C), *after = at(residual(2 * l + 2), C);
            prefetch_next_layer(l);
            {
                const auto span = lanes.span(COMPUTE, "layernorm 1", l);
                layernorm_forward(compute(), at(ln1(l), C), at(layer(a_.ln1_mean, k, 1), 1), at(layer(a_.ln1_rstd, k, 1), 1), before, param(LN1W, l),
                                  param(LN1B, l), count, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "qkv", l);
                linear_forward(compute(), qkv, at(ln1(l), C), param(QKVW, l), param(QKVB, l), count, C, 3 * C);
            }
            {
                const auto span = lanes.span(COMPUTE, "attention", l);
                attention_forward(compute(), attention_, att, layer(a_.lse, k, NH) + first * NH, qkv, a_.scratch, rows, n, C, NH);
            }
            {
                const auto span = lanes.span(COMPUTE, "attproj", l);
                linear_residual_forward(compute(), between, before, att, param(ATTPROJW, l), param(ATTPROJB, l), count, C, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "layernorm 2", l);
                layernorm_forward(compute(), at(ln2(l), C), at(layer(a_.ln2_mean, k, 1), 1), at(layer(a_.ln2_rstd, k, 1), 1), between, param(LN2W, l),
                                  param(LN2B, l), count, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "fc", l);
                fc_forward(at(ln2(l), C), l, fc, activated, count);
            }
            {
                const auto span = lanes.span(COMPUTE, "fcproj", l);
                linear_residual_forward(compute(), after, between, activated, param(FCPROJW, l), param(FCPROJB, l), count, 4 * C, C);
            }
        }
        const auto span = lanes.span(COMPUTE, "final norm");
        layernorm_forward(compute(), at(a_.lnf, C), at(a_.lnf_mean, 1), at(a_.lnf_rstd, 1), at(residual(2 * L), C), param(LNFW), param(LNFB), count, C);
    }

    void fc_forward(const X *inp, int l, X *fc, X *activated, int count) {
        if (options.gelu_fusion >= 1) {
            linear_gelu_forward(compute(), activated, fc, inp, param(FCW, l), param(FCB, l), count, C, 4 * C);
        } else {
            linear_forward(compute(), fc, inp, param(FCW, l), param(FCB, l), count, C, 4 * C);
            gelu_forward(compute(), activated, fc, int64_t(count) * 4 * C);
        }
    }

    void prefetch_next_layer(int l) {
        if (!(options.prefetch & LLMC_PREFETCH_L2) || l + 1 >= L) return;
        prefetch_l2(compute(), param(QKVW, l + 1), sizeof(X) * size_t(layout_.per_layer[QKVW]));
    }

    // ---- head --------------------------------------------------------------------------------

    // Logits, losses and, when training, everything their gradient feeds, chunk by chunk: only one
    // chunk's logits exist at a time. Leaves the gradient of lnf in `branch`.
    void head(const int *targets, float dloss, bool train, Into into) {
        for (int row = 0; row < N; row += chunk_rows_) {
            const int rows = std::min(chunk_rows_, N - row);
            X *lnf = a_.lnf + int64_t(row) * C;
            {
                const auto span = lanes.span(COMPUTE, "logits");
                linear_forward<X>(compute(), a_.logits, lnf, param(WTE), nullptr, rows, C, Vp);
            }
            {
                const auto span = lanes.span(COMPUTE, "classifier");
                classifier(compute(), a_.token_losses + row, a_.logits, targets + row, dloss, rows, V, Vp, train);
            }
            if (!train) continue;
            {
                const auto span = lanes.span(COMPUTE, "dlnf");
                linear_backward_input(compute(), a_.branch + int64_t(row) * C, a_.logits, param(WTE), rows, C, Vp);
            }
            const auto span = lanes.span(COMPUTE, "dwte");
            linear_backward_weight(compute(), grad(WTE), a_.logits, lnf, rows, C, Vp, row == 0 ? into : Into::ADD);
        }
    }

    void download_logits(const X *normed, int rows, float *out) {
        linear_forward<X>(compute(), a_.logits, normed, param(WTE), nullptr, rows, C, Vp);
        std::vector<X> all(size_t(rows) * Vp);
        copy_to_host_now(compute(), all.data(), a_.logits, all.size() * sizeof(X));
        for (int row = 0; row < rows; row++) {
            convert(reinterpret_cast<char *>(out + int64_t(row) * V), LLMC_FP32, reinterpret_cast<const char *>(all.data() + int64_t(row) * Vp), sizeof(X), V);
        }
    }

    // ---- backward ----------------------------------------------------------------------------

    // From the gradient of lnf in `branch` down to the gradient of the embedding in dresidual. A bias gradient
    // is a sum over rows of a gradient that some op before it writes, and that op makes the sum, where it can.
    void backward(Into into) {
        X *dx = a_.dresidual;
        {
            const auto span = lanes.span(COMPUTE, "final norm bwd");
            layernorm_backward(compute(), dx, grad(LNFW), grad(LNFB), grad(FCPROJB, L - 1), a_.scratch, a_.branch, residual(2 * L), param(LNFW),
                               a_.lnf_mean, a_.lnf_rstd, N, C, Into::ASSIGN, into);
        }
        for (int l = L - 1; l >= 0; l--) {
            X *fc = layer(a_.fc, l, 4 * C), *att = layer(a_.att, l, C), *qkv = layer(a_.qkv, l, 3 * C);
            float *mean1 = layer(a_.ln1_mean, l, 1), *rstd1 = layer(a_.ln1_rstd, l, 1), *mean2 = layer(a_.ln2_mean, l, 1), *rstd2 = layer(a_.ln2_rstd, l, 1);
            if (options.recompute >= 1) {
                const auto span = lanes.span(COMPUTE, "gelu again", l);
                gelu_forward(compute(), gelu(l), fc, int64_t(N) * 4 * C);
            }
            {
                const auto span = lanes.span(COMPUTE, "fcproj dweight", l);
                linear_backward_weight(compute(), grad(FCPROJW, l), dx, gelu(l), N, 4 * C, C, into);
            }
            {
                const auto span = lanes.span(COMPUTE, "fcproj dinput", l);
                if (options.gelu_fusion >= 2) {
                    linear_gelu_backward_input(compute(), a_.wide, grad(FCB, l), a_.scratch, dx, param(FCPROJW, l), fc, N, 4 * C, C, into);
                } else {
                    linear_backward_input(compute(), a_.wide, dx, param(FCPROJW, l), N, 4 * C, C);
                    gelu_backward(compute(), a_.wide, grad(FCB, l), a_.scratch, a_.wide, fc, N, 4 * C, into);
                }
            }
            if (options.recompute >= 2) {
                const auto span = lanes.span(COMPUTE, "norm 2 again", l);
                layernorm_forward(compute(), ln2(l), mean2, rstd2, residual(2 * l + 1), param(LN2W, l), param(LN2B, l), N, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "fc dweight", l);
                linear_backward_weight(compute(), grad(FCW, l), a_.wide, ln2(l), N, C, 4 * C, into);
            }
            {
                const auto span = lanes.span(COMPUTE, "fc dinput", l);
                linear_backward_input(compute(), a_.branch, a_.wide, param(FCW, l), N, C, 4 * C);
            }
            {
                const auto span = lanes.span(COMPUTE, "norm 2 bwd", l);
                layernorm_backward(compute(), dx, grad(LN2W, l), grad(LN2B, l), grad(ATTPROJB, l), a_.scratch, a_.branch, residual(2 * l + 1),
                                   param(LN2W, l), mean2, rstd2, N, C, Into::ADD, into);
            }
            {
                const auto span = lanes.span(COMPUTE, "attproj dweight", l);
                linear_backward_weight(compute(), grad(ATTPROJW, l), dx, att, N, C, C, into);
            }
            {
                const auto span = lanes.span(COMPUTE, "attproj dinput", l);
                linear_backward_input(compute(), a_.branch, dx, param(ATTPROJW, l), N, C, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "attention bwd", l);
                attention_backward(compute(), attention_, a_.wide, grad(QKVB, l), a_.scratch, a_.branch, qkv, att, layer(a_.lse, l, NH), B, T, C, NH, into);
            }
            if (options.recompute >= 2) {
                const auto span = lanes.span(COMPUTE, "norm 1 again", l);
                layernorm_forward(compute(), ln1(l), mean1, rstd1, residual(2 * l), param(LN1W, l), param(LN1B, l), N, C);
            }
            {
                const auto span = lanes.span(COMPUTE, "qkv dweight", l);
                linear_backward_weight(compute(), grad(QKVW, l), a_.wide, ln1(l), N, C, 3 * C, into);
            }
            {
                const auto span = lanes.span(COMPUTE, "qkv dinput", l);
                linear_backward_input(compute(), a_.branch, a_.wide, param(QKVW, l), N, C, 3 * C);
            }
            const auto span = lanes.span(COMPUTE, "norm 1 bwd", l);
            layernorm_backward(compute(), dx, grad(LN1W, l), grad(LN1B, l), l > 0 ? grad(FCPROJB, l - 1) : nullptr, a_.scratch, a_.branch, residual(2 * l),
                               param(LN1W, l), mean1, rstd1, N, C, Into::ADD, into);
        }
    }

    // ---- small things ------------------------------------------------------------------------

    void require_trained(const char *missing) const {
        if (!options.train) fail(LLMC_UNAVAILABLE, "this model was made with options.train = 0: it has no %s", missing);
    }

    void check_generation_tokens(const int *tokens, int64_t count) const {
        for (int64_t i = 0; i < count; i++) {
            if (unsigned(tokens[i]) >= unsigned(V)) fail(LLMC_INVALID, "token %lld is %d, expected 0 to %d", (long long)i, tokens[i], V - 1);
        }
    }

    struct Tensor {
        char *device;
        int64_t count;
        int64_t width;  // bytes per element
    };
    static constexpr int64_t kPiece = 4 << 20;  // elements staged on the host at a time

    Tensor tensor(int kind, int index, int dtype, int64_t bytes) const {
        if (index < 0 || index >= LLMC_NUM_PARAMS) fail(LLMC_INVALID, "index is %d, expected 0 to %d", index, LLMC_NUM_PARAMS - 1);
        if (dtype != LLMC_FP32 && dtype != LLMC_BF16) fail(LLMC_INVALID, "dtype is %d, expected LLMC_FP32 or LLMC_BF16", dtype);
        char *base = nullptr;
        int64_t element = sizeof(float);
        switch (kind) {
            case LLMC_PARAM: base = reinterpret_cast<char *>(params_), element = sizeof(X); break;
            case LLMC_GRAD:
                require_trained("gradients");
                base = reinterpret_cast<char *>(grads_), element = sizeof(X);
                break;
            case LLMC_ADAM_M:
            case LLMC_ADAM_V:
                require_trained("moments");
                base = reinterpret_cast<char *>(kind == LLMC_ADAM_M ? m_ : v_);
                break;
            case LLMC_MASTER:
                require_trained("master weights");
                if (!master_) fail(LLMC_UNAVAILABLE, "this model keeps no master weights (they need bf16 precision and options.master_weights)");
                base = reinterpret_cast<char *>(master_);
                break;
            default: fail(LLMC_INVALID, "kind is %d, expected LLMC_PARAM, LLMC_GRAD, LLMC_ADAM_M, LLMC_ADAM_V or LLMC_MASTER", kind);
        }
        const int64_t count = layout_.count[index];
        if (bytes != count * width(dtype)) {
            fail(LLMC_INVALID, "bytes is %lld, expected %lld for %s as %s", (long long)bytes, (long long)(count * width(dtype)), table_[index].name,
                 dtype == LLMC_BF16 ? "bf16" : "fp32");
        }
        return {base + layout_.offset[index] * element, count, element};
    }

    void write_converted(const Tensor &t, int dtype, const void *buffer) {
        std::vector<char> staged;
        for (int64_t done = 0; done < t.count; done += kPiece) {
            const int64_t n = std::min(kPiece, t.count - done);
            staged.resize(size_t(n * t.width));
            convert(staged.data(), t.width == 2 ? LLMC_BF16 : LLMC_FP32, static_cast<const char *>(buffer) + done * width(dtype), width(dtype), n);
            copy_to_device_now(compute(), t.device + done * t.width, staged.data(), staged.size());
        }
    }
};

template <class F>
auto with_storage_type(const llmc_options &options, F &&f) {
    if (options.precision == LLMC_FP32) return f(float{});
#ifdef LLMC_CUDA
    return f(bf16{});
#else
    fail(LLMC_UNAVAILABLE, "options.precision is bf16, which the CPU backend does not compute in; bf16 checkpoints load into fp32");
#endif
}

}  // namespace

std::unique_ptr<Model> make_model(const llmc_config &config, const llmc_options &options) {
    return with_storage_type(options, [&](auto x) -> std::unique_ptr<Model> { return std::make_unique<GPT2<decltype(x)>>(config, options, false); });
}

llmc_memory plan_memory(const llmc_config &config, const llmc_options &options) {
    return with_storage_type(options, [&](auto x) {
        llmc_memory plan{};
        for (int recompute = 0; recompute < 3; recompute++) {
            llmc_options variant = options;
            variant.recompute = recompute;
            const llmc_memory p = GPT2<decltype(x)>(config, variant, true).plan();
            const int64_t total = p.total, free_bytes = p.device_free, device_total = p.device_total;
            if (recompute == options.recompute) {
                int64_t kept[3] = {plan.total_by_recompute[0], plan.total_by_recompute[1], plan.total_by_recompute[2]};
                plan = p;
                std::copy(kept, kept + 3, plan.total_by_recompute);
                plan.device_free = free_bytes;
                plan.device_total = device_total;
            }
            plan.total_by_recompute[recompute] = total;
        }
        return plan;
    });
}

}  // namespace llmc
