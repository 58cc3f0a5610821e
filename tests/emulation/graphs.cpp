// graphs.cpp - captured graphs: the work in its order, which a launch puts into a stream.
#include "llmc/cuda/graph_memsets.h"
#include "runtime.h"

using namespace emulation;

void llmc::memsets_to_kernels(cudaGraph_t) {}  // no op of the CPU needs one

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
    if (!allowed("cudaGraphInstantiate")) return failed(cudaErrorUnknown, "cudaGraphInstantiate was asked to fail");
    if (!graph || graph->destroyed) return broken(cudaErrorInvalidResourceHandle, "cudaGraphInstantiate of a graph that isn't there");
    if (graph->instantiated) return broken(cudaErrorIllegalState, "a graph was instantiated twice");
    graph->instantiated = true;
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    if (!allowed("cudaGraphUpload")) return failed(cudaErrorUnknown, "cudaGraphUpload was asked to fail");
    if (!executable || executable->destroyed) return broken(cudaErrorInvalidResourceHandle, "cudaGraphUpload of a destroyed graph");
    const std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->graph) return broken(cudaErrorStreamCaptureUnsupported, "cudaGraphUpload into the capture of " + stream->name);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    if (!allowed("cudaGraphLaunch")) return failed(cudaErrorUnknown, "cudaGraphLaunch was asked to fail");
    if (!executable || executable->destroyed) return broken(cudaErrorInvalidResourceHandle, "cudaGraphLaunch of a destroyed graph");
    {
        const std::lock_guard<std::mutex> lock(stream->mutex);
        if (stream->graph) return broken(cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch into the capture of " + stream->name);
    }
    for (const Work &node : executable->nodes) {
        if (node.event && node.event->destroyed) return broken(cudaErrorInvalidResourceHandle, "cudaGraphLaunch with a destroyed event");
    }
    for (const Work &node : executable->nodes) append(stream, node);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (!graph || graph->destroyed) return broken(cudaErrorInvalidResourceHandle, "a graph was destroyed twice");
    graph->destroyed = true;
    graph->nodes.clear();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    if (!executable || executable->destroyed) return broken(cudaErrorInvalidResourceHandle, "an executable graph was destroyed twice");
    executable->destroyed = true;
    executable->nodes.clear();
    return cudaSuccess;
}
