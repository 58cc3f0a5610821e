// attention.cu - causal attention's front door: decides who attends, checks sizes, sizes the scratch.
//   out[b,t,h] = sum over u <= t of softmax_u(q[b,t,h] . k[b,u,h] / sqrt(HS)) v[b,u,h]
// A shape that attention_prepare built cuDNN plans for goes to cuDNN; every other one (fp32, odd head
// sizes, no cuDNN, the arbitrary lengths of a prefill) goes to the own kernels. Where there is an own backward on
// Hopper's tensor cores, it is taken before cuDNN's, unless that is asked for. Nothing is ever built, loaded or
// allocated by forward and backward.
#include "attention.h"

#include <algorithm>
#include <type_traits>

#include "../ops.h"
#include "attention_wgmma.h"
#include "column_sum.h"
#include "lane.cuh"

namespace llmc {
namespace {

struct State {  // lane.attention
    std::unique_ptr<CudnnAttention> cudnn;
};

AttentionShape checked(const AttentionPlan &plan, int B, int T, int C, int NH) {
    if (B < 1 || T < 1 || NH < 1 || C < NH || C % NH != 0)
        fail(LLMC_INVALID, "attention: B=%d T=%d C=%d NH=%d; all must be positive and NH must divide C", B, T, C, NH);
    if (C / NH > ATTENTION_MAX_HEAD_SIZE)
        fail(LLMC_UNAVAILABLE, "attention: head size %d (C=%d, NH=%d); the largest this build handles is %d", C / NH, C, NH, ATTENTION_MAX_HEAD_SIZE);
    if (int64_t(B) * NH > 0x7fffffff) fail(LLMC_INVALID, "attention: B=%d times NH=%d passes 2^31", B, NH);
    return {B, T, C, NH, plan.deterministic};
}

// cuDNN's plans of this shape, null if there are none
CudnnAttention *prepared(Lane &lane, const AttentionPlan &plan, const AttentionShape &shape) {
    const State *state = static_cast<const State *>(lane.attention.get());
    if (plan.choice == LLMC_ATTENTION_OWN || !state || !state->cudnn || !state->cudnn->has(shape)) return nullptr;
    return state->cudnn.get();
}

// Whether the own backward for compute capability 9.0 takes this shape.
template <class X>
bool takes_wgmma(const Lane &lane, const AttentionPlan &plan, const AttentionShape &s) {
    return !std::is_same<X, float>::value && plan.choice != LLMC_ATTENTION_CUDNN && wgmma_attention_available(lane, s.T, s.C, s.NH);
}

void enqueued(const char *what, const std::string &problem) {
    if (!problem.empty()) fail(LLMC_DEVICE, "%s: cuDNN: %s", what, problem.c_str());
}

template <class X>
bool aligned(const X *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

template <class X>
std::string attention_prepare(Lane &lane, const AttentionPlan &plan, int B, int T, int C, int NH) {
    const AttentionShape shape = checked(plan, B, T, C, NH);
    if (plan.choice == LLMC_ATTENTION_OWN) return "";
    const bool asked = plan.choice == LLMC_ATTENTION_CUDNN;
    const std::string instead = "; own kernels are used instead";
    if (std::is_same<X, float>::value) return asked ? "attention: cuDNN's fused attention has no fp32 form" + instead : "";
    if (C / NH % 8 != 0) return "attention: cuDNN needs a head size that is a multiple of 8, not " + std::to_string(C / NH) + instead;

    std::string why;
    if (!lane.attention) lane.attention = std::make_shared<State>();
    State &state = *static_cast<State *>(lane.attention.get());
    if (!state.cudnn) state.cudnn = CudnnAttention::open(lane.stream, why);
    if (!state.cudnn) return "attention: cuDNN is not usable (" + why + ")" + instead;
    if (!state.cudnn->build(shape, plan.backward && !takes_wgmma<X>(lane, plan, shape), why)) return "attention: cuDNN has no plan for this shape (" + why + ")" + instead;
    return "";
}

// Covers cuDNN's workspace if the shape was prepared before, the own backwards' row sums, and column sums.
template <class X>
size_t attention_scratch_bytes(Lane &lane, const AttentionPlan &plan, int B, int T, int C, int NH) {
    const AttentionShape shape = checked(plan, B, T, C, NH);
    const size_t own = !plan.backward ? 0 : std::max({size_t(B) * NH * T * sizeof(float), column_sum_bytes(B * T, 3 * C),
                                                      takes_wgmma<X>(lane, plan, shape) ? wgmma_attention_scratch_bytes(B, T, NH) : 0});
    const CudnnAttention *cudnn = std::is_same<X, float>::value ? nullptr : prepared(lane, plan, shape);
    const size_t bytes = cudnn ? std::max(own, cudnn->workspace_bytes(shape)) : own;
    return (bytes + 255) / 256 * 256;
}

template <class X>
void attention_forward(Lane &lane, const AttentionPlan &plan, X *out, float *lse, const X *qkv, void *scratch, int B, int T, int C, int NH) {
    const AttentionShape shape = checked(plan, B, T, C, NH);
    CudnnAttention *cudnn = std::is_same<X, float>::value ? nullptr : prepared(lane, plan, shape);
    if (cudnn && aligned(out) && aligned(qkv))
        enqueued("attention_forward", cudnn->forward(shape, out, lse, qkv, scratch));
    else
        flash_forward<X>(lane.stream, lane.max_shared, out, lse, qkv, B, T, C, NH);
}

template <class X>
void attention_backward(Lane &lane, const AttentionPlan &plan, X *dqkv, X *dsum, void *scratch, const X *dout, const X *qkv, const X *out, const float *lse,
                        int B, int T, int C, int NH, Into into) {
    const AttentionShape shape = checked(plan, B, T, C, NH);
    CudnnAttention *cudnn = std::is_same<X, float>::value ? nullptr : prepared(lane, plan, shape);
    const bool packed = aligned(dqkv) && aligned(dout) && aligned(qkv) && aligned(out);
    if constexpr (!std::is_same<X, float>::value) {
        if (packed && takes_wgmma<X>(lane, plan, shape)) return wgmma_attention_backward(lane, dqkv, dsum, scratch, dout, qkv, out, lse, B, T, C, NH, into);
    }
    if (cudnn && packed && cudnn->has_backward(shape))
        enqueued("attention_backward", cudnn->backward(shape, dqkv, scratch, dout, qkv, out, lse));
    else
        flash_backward<X>(lane.stream, lane.max_shared, dqkv, static_cast<float *>(scratch), dout, qkv, out, lse, B, T, C, NH);
    if (dsum) column_sum(lane, dsum, scratch, dqkv, B * T, 3 * C, into);
}

#define LLMC_INSTANTIATE(X)                                                                                                                    \
    template std::string attention_prepare<X>(Lane &, const AttentionPlan &, int, int, int, int);                                              \
    template size_t attention_scratch_bytes<X>(Lane &, const AttentionPlan &, int, int, int, int);                                             \
    template void attention_forward<X>(Lane &, const AttentionPlan &, X *, float *, const X *, void *, int, int, int, int);                    \
    template void attention_backward<X>(Lane &, const AttentionPlan &, X *, X *, void *, const X *, const X *, const X *, const float *, int, int, int, int, Into);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)

}  // namespace llmc
