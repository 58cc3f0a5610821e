// gpt2_tensors.h - parameters, gradients and moments from and to the host, and the guard.
#pragma once
#include <algorithm>
#include <cstring>

#include "convert.h"
#include "device.h"
#include "error.h"
#include "gpt2.h"

namespace llmc {

constexpr int64_t STAGED = 4 << 20;  // elements staged on the host at a time

template <class X>
auto GPT2<X>::tensor(int kind, int index, int dtype, int64_t bytes) const -> Tensor {
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

template <class X>
void GPT2<X>::read_tensor(int kind, int index, int dtype, void *buffer, int64_t bytes) {
    const Tensor t = tensor(kind, index, dtype, bytes);
    lanes.synchronize();
    std::vector<char> staged;
    for (int64_t done = 0; done < t.count; done += STAGED) {
        const int64_t n = std::min(STAGED, t.count - done);
        staged.resize(size_t(n) * t.width);
        copy_to_host_now(compute(), staged.data(), t.device + done * t.width, staged.size());
        convert(static_cast<char *>(buffer) + done * width(dtype), dtype, staged.data(), t.width, n);
    }
}

template <class X>
void GPT2<X>::write_converted(const Tensor &t, int dtype, const void *buffer) {
    std::vector<char> staged;
    for (int64_t done = 0; done < t.count; done += STAGED) {
        const int64_t n = std::min(STAGED, t.count - done);
        staged.resize(size_t(n * t.width));
        convert(staged.data(), t.width == 2 ? LLMC_BF16 : LLMC_FP32, static_cast<const char *>(buffer) + done * width(dtype), width(dtype), n);
        copy_to_device_now(compute(), t.device + done * t.width, staged.data(), staged.size());
    }
}

template <class X>
void GPT2<X>::write_tensor(int kind, int index, int dtype, const void *buffer, int64_t bytes) {
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

template <class X>
void GPT2<X>::read_guard(llmc_guard *guard) {
    require_trained("guard");
    copy_to_host_now(compute(), guard, guard_, sizeof *guard);
}

template <class X>
void GPT2<X>::write_guard(const llmc_guard &guard) {
    require_trained("guard");
    if (guard.loss_seen < 0 || guard.norm_seen < 0) fail(LLMC_INVALID, "guard counts are %lld and %lld, expected >= 0", (long long)guard.loss_seen, (long long)guard.norm_seen);
    copy_to_device_now(compute(), guard_, &guard, sizeof guard);
}

template <class X>
void GPT2<X>::take_snapshot() {
    require_trained("training state to take a snapshot of");
    const auto bytes = [](int64_t count, size_t width) { return size_t(count) * width; };
    snapshot.take({{params_, bytes(P, sizeof(X))}, {m_, bytes(P, 4)}, {v_, bytes(P, 4)}, {master_, master_ ? bytes(P, 4) : 0}, {guard_, sizeof *guard_}});
}

template <class X>
void GPT2<X>::read_snapshot(int kind, int index, int dtype, void *buffer, int64_t bytes) {
    if (kind == LLMC_GRAD) fail(LLMC_INVALID, "kind is LLMC_GRAD, but a snapshot keeps no gradients");
    const Tensor t = tensor(kind, index, dtype, bytes);
    char *to = static_cast<char *>(buffer);
    snapshot.read(t.device, t.count * t.width, [&](const char *piece, int64_t n) {
        convert(to, dtype, piece, t.width, n / t.width);
        to += n / t.width * width(dtype);
    });
}

template <class X>
void GPT2<X>::read_snapshot_guard(llmc_guard *guard) {
    snapshot.read(guard_, sizeof *guard, [&](const char *piece, int64_t n) { std::memcpy(guard, piece, size_t(n)); });
}

}  // namespace llmc
