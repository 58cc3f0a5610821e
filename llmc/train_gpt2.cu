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
#include <vector>

#include "convert.h"
#include "error.h"
#include "generate_gpt2.h"
#include "gpt2.h"
#include "gpt2_memory.h"
#include "gpt2_tensors.h"
#include "ops.h"

namespace llmc {

namespace {

// SplitMix64: one well-mixed 64-bit value per state, any state is fine.
uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

}  // namespace

// ---- the step -----------------------------------------------------------------------------------

template <class X>
void GPT2<X>::micro_step(int slot, int i, int n) {
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
    const GraphKey head_key{GraphKey::HEAD, slot, i == 0, n}, backward_key{GraphKey::BACKWARD, slot, i == 0};
    const auto run_head = [&](int slot) { head(batches.targets(slot), 1.0f / (float(N) * float(n)), true, into); };
    const auto run_backward = [&](int slot) {
        backward(into);
        const auto span = lanes.span(COMPUTE, "embedding bwd");
        embedding_backward(compute(), grad(WTE), grad(WPE), a_.dresidual, batches.inputs(slot), batches.index(slot), B, T, C, V,
                           config.context, into);
    };
    if (timeline_) {
        lanes.prepare({GraphKey::FORWARD, slot}, [&](int slot) { forward(batches.inputs(slot), 0, B, T); });
        lanes.prepare(head_key, run_head);
        lanes.prepare(backward_key, run_backward);
    }
    forward_batch(slot);
    lanes.await(TARGETS_READY, slot);
    lanes.await(MEAN_LOSS_READY);
    lanes.run(head_key, options.slots, run_head);
    lanes.signal(TARGETS_FREE, slot);
    lanes.signal(TOKEN_LOSSES_READY);
    lanes.run(backward_key, options.slots, run_backward);
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

template <class X>
int64_t GPT2<X>::update(const llmc_hyper &hyper) {
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

template <class X>
llmc_step_result GPT2<X>::result(int64_t ticket, int wait_ms) {
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

// ---- without training ---------------------------------------------------------------------------

template <class X>
float GPT2<X>::eval(int slot, float *losses) {
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

template <class X>
void GPT2<X>::logits(int slot, float *out, int64_t bytes) {
    batches.require_submitted(slot);
    if (bytes != int64_t(N) * V * 4) fail(LLMC_INVALID, "bytes is %lld, expected B*T*V*4 = %lld", (long long)bytes, (long long)(int64_t(N) * V * 4));
    forward_batch(slot);
    lanes.signal(INPUTS_FREE, slot);
    batches.consumed(slot);  // its targets, which nobody reads, are overwritten in their own lane's order
    for (int row = 0; row < N; row += chunk_rows_) {
        download_logits(a_.lnf + int64_t(row) * C, std::min(chunk_rows_, N - row), out + int64_t(row) * V);
    }
}

// ---- forward ------------------------------------------------------------------------------------

template <class X>
void GPT2<X>::forward_batch(int slot) {
    cached_rows_ = 0;
    lanes.await(INPUTS_READY, slot);
    lanes.run({GraphKey::FORWARD, slot}, options.slots, [&](int slot) { forward(batches.inputs(slot), 0, B, T); });
}

// Rows [first, first + rows*n) of the activations from tokens (rows, n). Training: first 0, B, T.
template <class X>
void GPT2<X>::forward(const int *tokens, int64_t first, int rows, int n) {
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

template <class X>
void GPT2<X>::fc_forward(const X *inp, int l, X *fc, X *activated, int count) {
    if (options.gelu_fusion >= 1) {
        linear_gelu_forward(compute(), activated, fc, inp, param(FCW, l), param(FCB, l), count, C, 4 * C);
    } else {
        linear_forward(compute(), fc, inp, param(FCW, l), param(FCB, l), count, C, 4 * C);
        gelu_forward(compute(), activated, fc, int64_t(count) * 4 * C);
    }
}

template <class X>
void GPT2<X>::prefetch_next_layer(int l) {
    if (!(options.prefetch & LLMC_PREFETCH_L2) || l + 1 >= L) return;
    prefetch_l2(compute(), param(QKVW, l + 1), sizeof(X) * size_t(layout_.per_layer[QKVW]));
}

// ---- head ---------------------------------------------------------------------------------------

// Logits, losses and, when training, everything their gradient feeds, chunk by chunk: only one
// chunk's logits exist at a time. Leaves the gradient of lnf in `branch`.
template <class X>
void GPT2<X>::head(const int *targets, float dloss, bool train, Into into) {
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

template <class X>
void GPT2<X>::download_logits(const X *normed, int rows, float *out) {
    linear_forward<X>(compute(), a_.logits, normed, param(WTE), nullptr, rows, C, Vp);
    std::vector<X> all(size_t(rows) * Vp);
    copy_to_host_now(compute(), all.data(), a_.logits, all.size() * sizeof(X));
    for (int row = 0; row < rows; row++) {
        convert(reinterpret_cast<char *>(out + int64_t(row) * V), LLMC_FP32, reinterpret_cast<const char *>(all.data() + int64_t(row) * Vp), sizeof(X), V);
    }
}

// ---- backward -----------------------------------------------------------------------------------

// From the gradient of lnf in `branch` down to the gradient of the embedding in dresidual. A bias gradient
// is a sum over rows of a gradient that some op before it writes, and that op makes the sum, where it can.
template <class X>
void GPT2<X>::backward(Into into) {
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

// ---- storage types --------------------------------------------------------------------------------

namespace {

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
