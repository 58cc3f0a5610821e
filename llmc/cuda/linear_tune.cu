// linear_tune.cu - chooses each product's algorithm by timing the op that a step calls, epilogue, bias
// kernels and all, on noise (zeros draw less power and would rank differently).
//
// The library orders its proposals by a model of the machine; the first is often a few percent from the
// best. A proposal takes the first one's place if it is more than 1% faster: less is noise.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lane.cuh"
#include "linear.h"
#include "linear_known.h"
#include "linear_plan.h"
#include "linear_wgmma.h"
#include "pack.cuh"

namespace llmc {
namespace {

constexpr int PROPOSALS = 8;
constexpr float WORTH = 0.99f;      // of the time to beat
constexpr float HOPELESS = 1.25f;   // times the best: not measured further
constexpr float BATCH_MS = 1.0f;    // length of one timed batch, at least one call
constexpr int MAX_CALLS = 20;

// Values in -1 .. 1 by a hash of the index.
template <class X>
__global__ void __launch_bounds__(256) fill_noise(X *values, int64_t n) {
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < n; i += int64_t(gridDim.x) * 256) {
        uint32_t h = uint32_t(i) * 2654435761u ^ uint32_t(i >> 32);
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        values[i] = from_float<X>(int32_t(h ^ h >> 16) * 4.6566129e-10f);
    }
}

struct Event {
    cudaEvent_t event = nullptr;
    Event() { cuda_check(cudaEventCreate(&event), "linear_tune: event"); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event &) = delete;
};

// The tensors of one use; copies of them lie one after the other in scratch and take turns.
template <class X>
class Bench {
  public:
    explicit Bench(const LinearUse &u) : use_(u) {
        const int64_t in = int64_t(u.N) * u.C, out = int64_t(u.N) * u.OC;
        const bool slope = u.op == LinearOp::GELU_BACKWARD_INPUT;
        const int64_t pre = u.op == LinearOp::GELU_FORWARD || u.op == LinearOp::RESIDUAL_FORWARD ? out : slope ? in : 0;
        const int64_t sums = u.bias && slope ? int64_t(linear_scratch_bytes(u.N, u.C)) : 0;
        const int64_t sizes[] = {in, out, int64_t(u.OC) * u.C, u.bias ? std::max(u.C, u.OC) : 0, pre, ceil_div(sums, sizeof(X))};
        for (int t = 0; t < TENSORS; t++) {
            offset_[t] = bytes_;
            bytes_ += ceil_div(sizes[t] * int64_t(sizeof(X)), 256) * 256;
        }
    }
    int64_t bytes() const { return bytes_; }

    void fill(Lane &lane, void *scratch, int64_t scratch_bytes) {
        base_ = static_cast<char *>(scratch);
        const int64_t enough = ceil_div(2 * int64_t(lane.l2_bytes), bytes_) + 1;
        copies_ = int(std::max<int64_t>(1, std::min(scratch_bytes / bytes_, enough)));
        fill_noise<<<1024, 256, 0, lane.stream>>>(reinterpret_cast<X *>(base_), copies_ * bytes_ / int64_t(sizeof(X)));
        launch_check("linear_tune: noise");
    }

    void call(Lane &lane, int turn) const {
        char *const copy = base_ + turn % copies_ * bytes_;
        const auto tensor = [&](int t) { return reinterpret_cast<X *>(copy + offset_[t]); };
        X *const inp = tensor(INP), *const out = tensor(OUT), *const w = tensor(W), *const b = use_.bias ? tensor(B) : nullptr, *const pre = tensor(PRE);
        const int N = use_.N, C = use_.C, OC = use_.OC;
        switch (use_.op) {
        case LinearOp::FORWARD: return linear_forward(lane, out, inp, w, b, N, C, OC);
        case LinearOp::RESIDUAL_FORWARD: return linear_residual_forward(lane, out, pre, inp, w, b, N, C, OC);
        case LinearOp::GELU_FORWARD: return linear_gelu_forward(lane, out, pre, inp, w, b, N, C, OC);
        case LinearOp::BACKWARD_INPUT: return linear_backward_input(lane, inp, out, w, N, C, OC);
        case LinearOp::GELU_BACKWARD_INPUT: return linear_gelu_backward_input(lane, inp, b, tensor(SUMS), out, w, pre, N, C, OC, use_.into);
        case LinearOp::BACKWARD_WEIGHT: return linear_backward_weight(lane, w, out, inp, N, C, OC, use_.into);
        }
    }

    bool has_own(const Lane &lane) const { return wgmma_gelu_available(lane, use_.N, use_.C, use_.OC); }

    std::string name() const {
        static const char *const OPS[] = {"forward", "residual forward", "gelu forward", "backward input", "gelu backward input", "backward weight"};
        char text[128];
        std::snprintf(text, sizeof text, "%s%s%s N=%d C=%d OC=%d", OPS[int(use_.op)], use_.bias ? ", bias" : "",
                      use_.op == LinearOp::BACKWARD_WEIGHT && use_.into == Into::ADD ? ", add" : "", use_.N, use_.C, use_.OC);
        return text;
    }

  private:
    enum { INP, OUT, W, B, PRE, SUMS, TENSORS };
    LinearUse use_;
    int64_t offset_[TENSORS] = {}, bytes_ = 0;
    char *base_ = nullptr;
    int copies_ = 1;
};

template <class X>
class Tuner {
  public:
    Tuner(Lane &lane, const Bench<X> &bench) : lane_(lane), bench_(bench), state_(linear_state(lane)) {}

    // The plans that one call looks up: those refused or unavailable, then the one it runs.
    std::vector<ProductPlan *> plans() {
        std::vector<ProductPlan *> asked;
        state_.asked = &asked;
        try {
            bench_.call(lane_, 0);
        } catch (...) {
            state_.asked = nullptr;
            throw;
        }
        state_.asked = nullptr;
        return asked;
    }

    // Milliseconds a call: the lesser of two batches; infinite where it can't run or is beyond hope.
    float measure(float best) {
        try {
            bench_.call(lane_, 0);  // the first call may load the kernel
            const float once = batch(1);
            if (once > best * HOPELESS) return INFINITY;
            const int calls = int(std::min<float>(std::max(BATCH_MS / once, 1.0f), MAX_CALLS));
            return std::min(batch(calls), batch(calls));
        } catch (const Error &) {
            cudaGetLastError();
            cuda_check(cudaStreamSynchronize(lane_.stream), "linear_tune");  // a fault of the device is not the proposal's alone
            return INFINITY;
        }
    }

    // Leaves the fastest proposal in the plan.
    struct Times { float first, best; };
    Times choose(ProductPlan &plan) {
        Times times{INFINITY, INFINITY};
        cublasLtMatmulAlgo_t chosen = plan.algo;
        for (const auto &proposal : state_.candidates(lane_, plan, PROPOSALS)) {
            plan.algo = proposal;
            const float ms = measure(times.best);
            if (times.first == INFINITY) times = {ms, ms}, chosen = ms < INFINITY ? proposal : chosen;
            else if (ms < times.best && ms < times.first * WORTH) times.best = ms, chosen = proposal;
        }
        plan.algo = chosen;
        return times;
    }

    // What an earlier process found. False, and all is as it was, where it can't run here after all.
    bool take(ProductPlan &plan, const Known &before) {
        const Way way = plan.way;
        plan.way = before.way;
        if (before.way == Way::OWN) {
            if (plan.has_matrix && sizeof(X) == 2 && bench_.has_own(lane_)) return plans(), true;
        } else {
            ProductPlan &running = *plans().back();
            if (state_.takes(lane_, running, before.algo)) {
                running.algo = before.algo;
                return plans(), true;  // run once, so that no kernel is loaded later
            }
        }
        plan.way = way;
        return false;
    }

  private:
    float batch(int calls) {
        cuda_check(cudaEventRecord(start_.event, lane_.stream), "linear_tune");
        for (int i = 0; i < calls; i++) bench_.call(lane_, ++turn_);
        cuda_check(cudaEventRecord(end_.event, lane_.stream), "linear_tune");
        cuda_check(cudaEventSynchronize(end_.event), "linear_tune");
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, start_.event, end_.event), "linear_tune");
        return ms / calls;
    }

    Lane &lane_;
    const Bench<X> &bench_;
    LinearState &state_;
    Event start_, end_;
    int turn_ = 0;
};

template <class X>
std::string tune(Lane &lane, const LinearUse &use, void *scratch, size_t scratch_bytes) {
    Bench<X> bench(use);
    if (use.N == 0) return "";
    if (bench.bytes() > int64_t(scratch_bytes)) return bench.name() + ": not tuned, needs " + std::to_string(bench.bytes()) + " bytes of scratch\n";
    bench.fill(lane, scratch, int64_t(scratch_bytes));
    Tuner<X> tuner(lane, bench);
    ProductPlan *const plan = tuner.plans().back();
    if (lane.deterministic) {
        cuda_check(cudaStreamSynchronize(lane.stream), "linear_tune");
        return bench.name() + ": the library's first proposal\n";
    }
    const std::string key = known_key(lane, use, cuda_type<X>());
    if (const auto before = known(key); before && tuner.take(*plan, *before)) return bench.name() + ": as found before\n";
    auto times = tuner.choose(*plan);
    const char *remark = "";
    const auto compare = [&](Way way, const char *said, auto measure) {
        const Way before = plan->way;
        plan->way = way;
        const float ms = measure();
        if (ms < times.best * WORTH) times.best = ms, remark = said;
        else plan->way = before;
    };
    const bool gelu = plan->has_matrix;
    if (gelu) compare(Way::APART, ", GELU apart", [&] { return tuner.choose(*tuner.plans().back()).best; });
    if (gelu && bench.has_own(lane)) compare(Way::OWN, ", by our own product", [&] { return tuner.measure(times.best); });
    remember_known(key, {plan->way, tuner.plans().back()->algo});
    char text[256];
    std::snprintf(text, sizeof text, "%s: %.4f -> %.4f ms%s\n", bench.name().c_str(), times.first, times.best, remark);
    return text;
}

}  // namespace

template <class X>
std::string linear_tune(Lane &lane, const std::vector<LinearUse> &uses, void *scratch, size_t scratch_bytes) {
    std::string report;
    for (const LinearUse &use : uses) report += tune<X>(lane, use, scratch, scratch_bytes);
    return report;
}

template <class X>
size_t linear_tune_bytes(const std::vector<LinearUse> &uses) {
    int64_t most = 0;
    for (const LinearUse &use : uses) most = std::max(most, Bench<X>(use).bytes());
    return size_t(most);
}

template <class X>
void linear_choose(Lane &lane, const std::vector<LinearUse> &uses, bool tune, void *scratch, size_t scratch_bytes) {
    linear_prepare(lane);
    if (tune) linear_tune<X>(lane, uses, scratch, scratch_bytes);
}

template void linear_choose<float>(Lane &, const std::vector<LinearUse> &, bool, void *, size_t);
template void linear_choose<bf16>(Lane &, const std::vector<LinearUse> &, bool, void *, size_t);
template std::string linear_tune<float>(Lane &, const std::vector<LinearUse> &, void *, size_t);
template std::string linear_tune<bf16>(Lane &, const std::vector<LinearUse> &, void *, size_t);
template size_t linear_tune_bytes<float>(const std::vector<LinearUse> &);
template size_t linear_tune_bytes<bf16>(const std::vector<LinearUse> &);

}  // namespace llmc
