// ops.h - every operation of a GPT-2 step, declared once; cpu/<op>.cpp and cuda/<op>.cu implement it.
//
// X is the storage type of parameters, gradients and activations (float; bf16 on CUDA). Arithmetic,
// statistics and losses are fp32. Conventions: destination first, sizes last; N = B*T rows; every
// pointer carries its shape; all tensors are row-major and dense unless a stride is named.
// `Into` says whether a destination is assigned or added to; where there is no Into it is assigned.
// A launcher validates, launches, checks; it never allocates, synchronises or picks a stream. Results
// do not depend on timing: no floating-point atomics (attention_backward may, unless deterministic).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"
#include "lanes.h"
#include "params.h"
#include "step.h"

namespace llmc {

enum class Into { ASSIGN, ADD };

// -- embedding.  out[b,t] = wte[tokens[b,t]] + wpe[first + t]; first, on the device, may be null for 0
template <class X>
void embedding_forward(Lane &, X *out /*(B,T,C)*/, const int *tokens /*(B,T)*/, const X *wte /*(Vp,C)*/, const X *wpe /*(maxT,C)*/,
                       int B, int T, int C, const int *first);
// Groups equal tokens so that the backward sums each table row in one fixed order without atomics.
// Runs on the inputs lane after the upload; index is embedding_index_bytes(N,V) of device memory.
size_t embedding_index_bytes(int N, int V);
void embedding_index(Lane &, void *index, const int *tokens /*(N)*/, int N, int V);
// dwte[token] += sum of dout over the token's positions (the head has already assigned dwte);
// dwpe[t] into= sum over b of dout[b,t]; rows t >= T are assigned zero when Into::ASSIGN.
template <class X>
void embedding_backward(Lane &, X *dwte /*(Vp,C)*/, X *dwpe /*(maxT,C)*/, const X *dout /*(B,T,C)*/, const int *tokens /*(B,T)*/,
                        const void *index, int B, int T, int C, int V, int maxT, Into);

// -- LayerNorm over the last axis, eps 1e-5.  out = (inp - mean) * rstd * w + b
template <class X>
void layernorm_forward(Lane &, X *out /*(N,C)*/, float *mean /*(N)*/, float *rstd /*(N)*/, const X *inp /*(N,C)*/,
                       const X *w /*(C)*/, const X *b /*(C)*/, int N, int C);
// dinp into_inp= gradient of inp; dw, db into_param= sums over rows. dsum (may be null) into_param= column sums
// of dinp as stored: the bias gradient of the linear layer that wrote inp. scratch: layernorm_scratch_bytes.
template <class X>
void layernorm_backward(Lane &, X *dinp /*(N,C)*/, X *dw /*(C)*/, X *db /*(C)*/, X *dsum /*(C)*/, void *scratch,
                        const X *dout /*(N,C)*/, const X *inp /*(N,C)*/, const X *w, const float *mean, const float *rstd, int N, int C,
                        Into into_inp, Into into_param);
size_t layernorm_scratch_bytes(int N, int C);

// -- linear.  out = inp w^T + b; b may be null
template <class X>
void linear_forward(Lane &, X *out /*(N,OC)*/, const X *inp /*(N,C)*/, const X *w /*(OC,C)*/, const X *b /*(OC)*/, int N, int C, int OC);
// out = residual + inp w^T + b, rounded once; out may be residual
template <class X>
void linear_residual_forward(Lane &, X *out /*(N,OC)*/, const X *residual /*(N,OC)*/, const X *inp /*(N,C)*/, const X *w, const X *b, int N, int C, int OC);
// pre = inp w^T + b, out = gelu(pre), in one matrix product's epilogue where the backend can
template <class X>
void linear_gelu_forward(Lane &, X *out /*(N,OC)*/, X *pre /*(N,OC)*/, const X *inp, const X *w, const X *b, int N, int C, int OC);
// dinp = dout w
template <class X>
void linear_backward_input(Lane &, X *dinp /*(N,C)*/, const X *dout /*(N,OC)*/, const X *w /*(OC,C)*/, int N, int C, int OC);
// dpre = (dout w) * gelu'(pre): the backward of a linear layer whose input was gelu(pre). dsum (may be null)
// into= column sums of dpre as stored: the bias gradient of the layer before. scratch: linear_scratch_bytes(N, C).
template <class X>
void linear_gelu_backward_input(Lane &, X *dpre /*(N,C)*/, X *dsum /*(C)*/, void *scratch, const X *dout /*(N,OC)*/, const X *w,
                                const X *pre /*(N,C)*/, int N, int C, int OC, Into);
// dw into= dout^T inp
template <class X>
void linear_backward_weight(Lane &, X *dw /*(OC,C)*/, const X *dout /*(N,OC)*/, const X *inp /*(N,C)*/, int N, int C, int OC, Into);
size_t linear_scratch_bytes(int N, int OC);

enum class LinearOp { FORWARD, RESIDUAL_FORWARD, GELU_FORWARD, BACKWARD_INPUT, GELU_BACKWARD_INPUT, BACKWARD_WEIGHT };

// One call of an op of ops.h as a step will make it. bias: b, db or dsum is not null.
struct LinearUse {
    LinearOp op;
    int N, C, OC;
    bool bias;
    Into into;  // of what sums over rows: BACKWARD_WEIGHT, GELU_BACKWARD_INPUT's dsum
};
// At create, never inside a step: makes what the uses need of the library, and with `tune` (which a
// deterministic lane ignores) times its algorithms on noise in scratch and keeps the fastest for this
// lane. Nothing on the CPU.
template <class X>
void linear_choose(Lane &, const std::vector<LinearUse> &uses, bool tune, void *scratch, size_t scratch_bytes);
// What `tune` has found in this process, as text, and text of an earlier one to take over (Error: the line that
// can't be read; nothing is then taken). Nothing on the CPU.
std::string linear_export_tuning();
void linear_import_tuning(const std::string &text);
// What runs differently from what was asked for, a sentence a line, since the last call.
std::string linear_take_notes(Lane &);

// -- GELU, tanh form.  0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
template <class X>
void gelu_forward(Lane &, X *out /*(n)*/, const X *inp /*(n)*/, int64_t n);
// dsum into= column sums of dinp as stored. scratch: linear_scratch_bytes(N, C).
template <class X>
void gelu_backward(Lane &, X *dinp /*(N,C), may be dout*/, X *dsum /*(C) or null*/, void *scratch, const X *dout /*(N,C)*/,
                   const X *inp /*(N,C)*/, int N, int C, Into);

// -- causal attention, scale 1/sqrt(HS), HS = C/NH. qkv (B,T,3,NH,HS) is the linear layer's output as it is.
// lse (B,NH,T) fp32 is the natural log of each row's sum of exponentials of scaled scores.
struct AttentionPlan {      // decided at create, so that nothing is built inside a step
    bool deterministic;
    int choice;             // LLMC_ATTENTION_*
    bool backward = true;   // false: attention_backward is never called
};
// Builds what (B,T,C,NH) needs on this lane; returns "" or why it fell back from the choice asked for.
template <class X>
std::string attention_prepare(Lane &, const AttentionPlan &, int B, int T, int C, int NH);
template <class X>
size_t attention_scratch_bytes(Lane &, const AttentionPlan &, int B, int T, int C, int NH);
template <class X>
void attention_forward(Lane &, const AttentionPlan &, X *out /*(B,T,C)*/, float *lse /*(B,NH,T)*/, const X *qkv, void *scratch, int B, int T, int C, int NH);
// dsum (may be null) into= column sums of dqkv as stored: the bias gradient of the linear layer before.
template <class X>
void attention_backward(Lane &, const AttentionPlan &, X *dqkv /*(B,T,3C)*/, X *dsum /*(3C)*/, void *scratch, const X *dout /*(B,T,C)*/,
                        const X *qkv /*(B,T,3C)*/, const X *out /*(B,T,C)*/, const float *lse, int B, int T, int C, int NH, Into);
// One new position: puts qkv's row b at cache[b,position] and attends over cache[b,0..position].
// cache (rows,T,3C) is the qkv tensor of the prefill. Any T, no preparation needed. position is on the device, so that
// one captured graph serves every token; the caller has seen to it that it is below T.
template <class X>
void attention_decode(Lane &, X *out /*(rows,C)*/, X *cache /*(rows,T,3C)*/, const X *qkv /*(rows,3C)*/, int rows, int T,
                      const int *position, int C, int NH);

// -- classifier: softmax, cross-entropy and its gradient in one visit to the logits.
// losses[n] = -log softmax(logits[n,:V])[targets[n]]; with write_dlogits, logits[n,:V] becomes
// (softmax - onehot) * dloss. Columns V..Vp are neither read nor written: they are zero because wte's
// padding rows are, and so are already right as a gradient. Any V >= 1.
template <class X>
void classifier(Lane &, float *losses /*(rows)*/, X *logits /*(rows,Vp)*/, const int *targets /*(rows)*/, float dloss, int rows, int V, int Vp, bool write_dlogits);
// mean_loss into= scale * sum of losses, in a fixed order
void mean_loss(Lane &, float *mean_loss /*(1)*/, const float *losses /*(N)*/, float scale, int N, Into);

// -- update
// norm_squared = sum of squares, in a fixed order. scratch: global_norm_scratch_bytes().
template <class X>
void global_norm_squared(Lane &, float *norm_squared /*(1)*/, void *scratch, const X *grads /*(n)*/, int64_t n);
size_t global_norm_scratch_bytes();
void store_step_params(Lane &, StepParams *device, const StepParams &params);
// decide_update of step.h on the device
void gate(Lane &, llmc_step_result *record, llmc_guard *guard, const StepParams *params, const float *mean_loss, const float *norm_squared);
// AdamW with decoupled decay over all tensors of the layout; nothing changes when record->skipped.
//   g = clip_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   p = p - lr * (m/bias1 / (sqrt(v/bias2) + eps) + decay * p)
// master (fp32) is the truth when not null. bf16 params get p by stochastic rounding: unbiased, so that
// updates below half a unit in the last place still move the weight on average; bits from
// hash(params->rounding, element), hence repeatable.
template <class X>
void adamw(Lane &, X *params, float *master, float *m, float *v, const X *grads, const ParamTable &table, const ParamLayout &layout,
           const StepParams *step, const llmc_step_result *record);

// -- lane services
void prefetch_l2(Lane &, const void *memory, size_t bytes);  // a hint; nothing on the CPU
void spin(Lane &, int microseconds);                         // testing: keeps the lane busy
template <class X>
void widen(Lane &, float *out, const X *inp, int64_t n);     // for reading tensors and logits
template <class X>
void narrow(Lane &, X *out, const float *inp, int64_t n);    // round to nearest even

}  // namespace llmc
