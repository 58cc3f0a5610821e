// convert.h - host buffers between the dtypes of the ABI. Exact one way, to nearest even the other.
#pragma once
#include <cstdint>
#include <cstring>

#include "dtype.h"
#include "llmc.h"

namespace llmc {

inline int64_t width(int dtype) { return dtype == LLMC_BF16 ? 2 : 4; }

// n values from elements of from_width bytes (2: bf16, 4: fp32) to dtype. Any alignment.
inline void convert(char *to, int dtype, const char *from, int64_t from_width, int64_t n) {
    if (width(dtype) == from_width) {
        std::memcpy(to, from, size_t(n * from_width));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        float value;
        if (dtype == LLMC_FP32) {
            std::memcpy(&bits, from + 2 * i, 2);
            value = widen_bf16(bits);
            std::memcpy(to + 4 * i, &value, 4);
        } else {
            std::memcpy(&value, from + 4 * i, 4);
            bits = narrow_bf16(value);
            std::memcpy(to + 2 * i, &bits, 2);
        }
    }
}

}  // namespace llmc
