// gpt2_memory.h - what a model takes of the device's memory, and the matrix products that are chosen for it.
#pragma once
#include <algorithm>

#include "device.h"
#include "error.h"
#include "gpt2.h"

namespace llmc {

template <class X>
GPT2<X>::GPT2(const llmc_config &c, const llmc_options &o, bool plan_only) : Model(c, o) {
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

template <class X>
GPT2<X>::~GPT2() {
    try {
        lanes.synchronize();  // nothing may still use the arena
    } catch (const Error &) {  // a poisoned device has nothing left to wait for
    }
}

template <class X>
void GPT2<X>::lay_out() {
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
    arena_.want(&a_.residual, (trains ? 1 + 2 * l : 2) * n * c, P_::ACTIVATIONS);
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
template <class X>
std::vector<LinearUse> GPT2<X>::linear_uses() const {
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

template <class X>
void GPT2<X>::explain_no_memory(const Error &e) {
    const char *advice = options.train && options.recompute < 2 ? "options.recompute = 2, " : "";
    fail(LLMC_NO_MEMORY, "%s; to fit: %soptions.head_chunks > %d, or a batch below %d", e.what(), advice, options.head_chunks, B);
}

template <class X>
llmc_memory GPT2<X>::plan() const {
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

}  // namespace llmc
