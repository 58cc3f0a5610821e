// tensor_map.h (CUDA, private) - descriptions of matrices in memory for the copies of hopper.cuh, in boxes of
// rows of 128 bytes whose 16-byte pieces land at piece ^ row % 8 (see Operand there).
#pragma once
#include <cuda.h>

#include <initializer_list>

#include "../dtype.h"
#include "lane.cuh"

namespace llmc {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, without linking to the driver; null where it is too old.
inline EncodeTiled encode_tiled() {
    static const EncodeTiled function = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
        const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
        return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(found) : nullptr;
    }();
    return function;
}

// sizes: elements, innermost first; strides: elements from one index to the next of dimensions 1, 2, ...; box: what one
// copy brings. Outside the sizes a copy brings zeros.
template <int D>
CUtensorMap tensor_map(const char *op, const bf16 *first, const int64_t (&sizes)[D], const int64_t (&strides)[D - 1], const int (&box)[D]) {
    CUtensorMap map;
    cuuint64_t size[D], stride[D - 1];
    cuuint32_t extent[D], step[D];
    for (int d = 0; d < D; d++) size[d] = cuuint64_t(sizes[d]), extent[d] = cuuint32_t(box[d]), step[d] = 1;
    for (int d = 0; d + 1 < D; d++) stride[d] = cuuint64_t(strides[d]) * sizeof(bf16);
    const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, D, const_cast<bf16 *>(first), size, stride, extent, step,
                                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) fail(LLMC_DEVICE, "%s: tensor map of %d dimensions: driver error %d", op, D, int(status));
    return map;
}

}  // namespace llmc
