#include "graph_memsets.h"

#include <cstdint>
#include <vector>

namespace llmc {

namespace {

constexpr size_t SMALL = 1024;  // bytes that one block fills at once; above, the copy engine's way is a good one

__global__ void fill(uint8_t *to, unsigned value, unsigned element, unsigned bytes) {
    const unsigned i = threadIdx.x;
    if (i < bytes) to[i] = uint8_t(value >> (8 * (i % element)));
}

// CUDA 12 has the same calls under a name of their own. Without room for edges' data they fail for an edge that has some.
#if CUDART_VERSION >= 13000
constexpr auto dependencies_of = cudaGraphNodeGetDependencies;
constexpr auto dependents_of = cudaGraphNodeGetDependentNodes;
constexpr auto add_dependencies = cudaGraphAddDependencies;
#else
constexpr auto dependencies_of = cudaGraphNodeGetDependencies_v2;
constexpr auto dependents_of = cudaGraphNodeGetDependentNodes_v2;
constexpr auto add_dependencies = cudaGraphAddDependencies_v2;
#endif

template <class Query>
cudaError_t neighbours(Query query, cudaGraphNode_t node, std::vector<cudaGraphNode_t> &found) {
    size_t count = 0;
    cudaError_t status = query(node, nullptr, nullptr, &count);
    found.resize(count);
    if (status == cudaSuccess && count) status = query(node, found.data(), nullptr, &count);
    return status;
}

cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t node) {
    cudaMemsetParams memset{};
    std::vector<cudaGraphNode_t> before, after;
    if (const auto status = cudaGraphMemsetNodeGetParams(node, &memset)) return status;
    const size_t size = memset.width * memset.elementSize;
    if (memset.height > 1 || size == 0 || size > SMALL) return cudaSuccess;
    if (const auto status = neighbours(dependencies_of, node, before)) return status;
    if (const auto status = neighbours(dependents_of, node, after)) return status;

    unsigned bytes = unsigned(size);
    void *arguments[] = {&memset.dst, &memset.value, &memset.elementSize, &bytes};
    cudaKernelNodeParams kernel{};
    kernel.func = reinterpret_cast<void *>(fill);
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3((bytes + 31) / 32 * 32);
    kernel.kernelParams = arguments;
    cudaGraphNode_t filled = nullptr;
    if (const auto status = cudaGraphAddKernelNode(&filled, graph, before.data(), before.size(), &kernel)) return status;
    const std::vector<cudaGraphNode_t> from(after.size(), filled);
    const cudaError_t status = after.empty() ? cudaSuccess : add_dependencies(graph, from.data(), after.data(), nullptr, after.size());
    // Both in the graph would be right, too: whichever is too many goes, with its edges.
    return status == cudaSuccess ? cudaGraphDestroyNode(node) : (cudaGraphDestroyNode(filled), status);
}

}  // namespace

void memsets_to_kernels(cudaGraph_t graph) {
    size_t count = 0;
    cudaError_t status = cudaGraphGetNodes(graph, nullptr, &count);
    std::vector<cudaGraphNode_t> nodes(count);
    if (status == cudaSuccess && count) status = cudaGraphGetNodes(graph, nodes.data(), &count);
    for (size_t i = 0; i < count && status == cudaSuccess; i++) {
        cudaGraphNodeType type{};
        status = cudaGraphNodeGetType(nodes[i], &type);
        if (status == cudaSuccess && type == cudaGraphNodeTypeMemset) status = replace(graph, nodes[i]);
    }
    if (status != cudaSuccess) cudaGetLastError();
}

}  // namespace llmc
