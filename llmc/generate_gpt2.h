// generate_gpt2.h - continuing texts: a prompt is read once, then a token at a time beside the keys and values
// that are kept of all before.
#pragma once
#include <algorithm>

#include "device.h"
#include "error.h"
#include "gpt2.h"

namespace llmc {

template <class X>
void GPT2<X>::check_generation_tokens(const int *tokens, int64_t count) const {
    for (int64_t i = 0; i < count; i++) {
        if (unsigned(tokens[i]) >= unsigned(V)) fail(LLMC_INVALID, "token %lld is %d, expected 0 to %d", (long long)i, tokens[i], V - 1);
    }
}

template <class X>
void GPT2<X>::prefill(const int *tokens, int rows, int n, float *logits) {
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

template <class X>
void GPT2<X>::decode(const int *tokens, float *logits) {
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

}  // namespace llmc
