// graph_memsets.h - a captured graph's small memsets as kernels.
//
// Before products that several thread blocks share the library clears a counter of four bytes. As memset nodes those break
// a graph's chain of kernels, and launching it then costs the host some ten times as much.
#pragma once
#include <cuda_runtime.h>

namespace llmc {

// Puts a kernel in the place of each small memset of a graph that is not instantiated yet. A node that can't be
// replaced stays: it does the same.
void memsets_to_kernels(cudaGraph_t graph);

}  // namespace llmc
