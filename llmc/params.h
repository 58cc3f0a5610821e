// params.h - the table of GPT-2's 16 tensors, in file order; the only place that knows it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "llmc.h"

namespace llmc {

enum ParamId {
    WTE, WPE, LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB,
    LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, LNFW, LNFB,
};

// Rows of the token table in memory: V rounded up so that matrix products and loads stay aligned.
inline int64_t padded_vocab(int64_t V) { return (V + 127) / 128 * 128; }

using ParamTable = std::array<llmc_param, LLMC_NUM_PARAMS>;
ParamTable param_table(const llmc_config &config);

// Where each tensor starts in one flat buffer, in elements. Starts are multiples of 64 elements, so
// that 128-bit accesses are aligned in every dtype; the gaps are zero and stay zero.
struct ParamLayout {
    std::array<int64_t, LLMC_NUM_PARAMS> offset{};
    std::array<int64_t, LLMC_NUM_PARAMS> count{};
    std::array<int64_t, LLMC_NUM_PARAMS> per_layer{};  // elements of one layer's slice; count if not stacked
    int64_t total = 0;
};
ParamLayout param_layout(const ParamTable &table, int64_t layers);

// Throws LLMC_INVALID with the field, its value and its limit.
void check_config(const llmc_config &config);
void check_options(const llmc_config &config, const llmc_options &options);
void check_hyper(const llmc_hyper &hyper);

}  // namespace llmc
