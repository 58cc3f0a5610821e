// attention_cudnn.cpp - cuDNN's fused attention through its C++ frontend's graph API: bf16, statistics
// kept, backward deterministic on request. Shapes: qkv and dqkv (B,T,3,NH,HS), out and dout (B,T,NH,HS)
// are described by strides, so nothing is transposed; lse (B,NH,T) fp32 is cuDNN's "stats", the natural
// log of each row's sum of exponentials of scaled scores. Cost: 2 B NH T^2 HS multiply-adds / 2 (causal)
// forward, 2.5 times that backward; memory traffic is linear in T.
//
// The library is not linked: the backend functions that the frontend calls are defined below and look up
// their originals in libcudnn.so.9 when it is first needed. A machine without cuDNN loses speed, not
// the engine. (The frontend's own dynamic mode would also load a second CUDA runtime and print.)
#include "attention.h"

#ifdef LLMC_CUDNN

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <cmath>
#include <map>
#include <unordered_map>

#if CUDNN_MAJOR != 9
#error "attention_cudnn.cpp loads libcudnn.so.9; build against cuDNN 9 headers"
#endif
#define LLMC_CUDNN_LIBRARY "libcudnn.so.9"

namespace llmc {
namespace {

// The open library; kept until the process ends, because plans and handles of others may live in it.
void *cudnn_library(std::string *why = nullptr) {
    static std::string reason;
    static void *const library = [] {
        void *opened = dlopen(LLMC_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (!opened) {
            const char *text = dlerror();
            reason = text ? text : "dlopen failed";
        }
        return opened;
    }();
    if (why) *why = reason;
    return library;
}

template <class Function>
Function *cudnn_function(const char *name) {
    void *library = cudnn_library();
    return library ? reinterpret_cast<Function *>(dlsym(library, name)) : nullptr;
}

}  // namespace
}  // namespace llmc

// Each definition satisfies the frontend's reference and stays inside this library (hidden), so that it
// never shadows a real cuDNN in the process.
#define LLMC_FORWARD(result, missing, name, parameters, arguments)                  \
    extern "C" __attribute__((visibility("hidden"))) result CUDNNWINAPI name parameters { \
        static auto *const original = llmc::cudnn_function<decltype(name)>(#name);  \
        return original ? original arguments : missing;                             \
    }
#define LLMC_FORWARD_STATUS(name, parameters, arguments) LLMC_FORWARD(cudnnStatus_t, CUDNN_STATUS_NOT_INITIALIZED, name, parameters, arguments)

LLMC_FORWARD(size_t, 0, cudnnGetVersion, (), ())
LLMC_FORWARD(const char *, "cuDNN is not loaded", cudnnGetErrorString, (cudnnStatus_t status), (status))
extern "C" __attribute__((visibility("hidden"))) void CUDNNWINAPI cudnnGetLastErrorString(char *message, size_t max_size) {
    static auto *const original = llmc::cudnn_function<decltype(cudnnGetLastErrorString)>("cudnnGetLastErrorString");
    if (original) return original(message, max_size);
    if (max_size > 0) message[0] = 0;
}
LLMC_FORWARD_STATUS(cudnnCreate, (cudnnHandle_t * handle), (handle))
LLMC_FORWARD_STATUS(cudnnDestroy, (cudnnHandle_t handle), (handle))
LLMC_FORWARD_STATUS(cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
LLMC_FORWARD_STATUS(cudnnGetStream, (cudnnHandle_t handle, cudaStream_t *stream), (handle, stream))
LLMC_FORWARD_STATUS(cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor), (type, descriptor))
LLMC_FORWARD_STATUS(cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
LLMC_FORWARD_STATUS(cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
LLMC_FORWARD_STATUS(cudnnBackendSetAttribute,
                    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                     const void *values),
                    (descriptor, name, type, count, values))
LLMC_FORWARD_STATUS(cudnnBackendGetAttribute,
                    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t capacity,
                     int64_t *count, void *values),
                    (descriptor, name, type, capacity, count, values))
LLMC_FORWARD_STATUS(cudnnBackendExecute, (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (handle, plan, pack))
// Convolution's, which attention never calls; only an unoptimised build keeps the references.
LLMC_FORWARD_STATUS(cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * filter), (filter))
LLMC_FORWARD_STATUS(cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), (filter))
LLMC_FORWARD_STATUS(cudnnSetFilterNdDescriptor,
                    (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int dimensions, const int sizes[]),
                    (filter, type, format, dimensions, sizes))
LLMC_FORWARD_STATUS(cudnnReorderFilterAndBias,
                    (cudnnHandle_t handle, const cudnnFilterDescriptor_t filter, cudnnReorderType_t type, const void *from, void *to, int with_bias,
                     const void *bias_from, void *bias_to),
                    (handle, filter, type, from, to, with_bias, bias_from, bias_to))

// The frontend compiles one unrelated kernel (RMSNorm + SiLU) at run time; attention never asks for it,
// so its compiler calls end here and the library needs no NVRTC of its own.
#define LLMC_NO_COMPILER(name, parameters) \
    extern "C" __attribute__((visibility("hidden"))) nvrtcResult name parameters { return NVRTC_ERROR_INTERNAL_ERROR; }
LLMC_NO_COMPILER(nvrtcCreateProgram, (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *))
LLMC_NO_COMPILER(nvrtcDestroyProgram, (nvrtcProgram *))
LLMC_NO_COMPILER(nvrtcCompileProgram, (nvrtcProgram, int, const char *const *))
LLMC_NO_COMPILER(nvrtcGetProgramLogSize, (nvrtcProgram, size_t *))
LLMC_NO_COMPILER(nvrtcGetProgramLog, (nvrtcProgram, char *))
LLMC_NO_COMPILER(nvrtcGetCUBINSize, (nvrtcProgram, size_t *))
LLMC_NO_COMPILER(nvrtcGetCUBIN, (nvrtcProgram, char *))

namespace llmc {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using TensorRef = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : int64_t { Q = 1, K, V, OUT, STATS, DOUT, DQ, DK, DV };

// Frontend texts can run over many lines; a note wants one.
std::string one_line(std::string text) {
    for (char &c : text)
        if (c == '\n' || c == '\r') c = ' ';
    if (text.size() > 300) text.resize(300);
    return text;
}

struct Plans {
    std::shared_ptr<Graph> forward, backward;  // backward may be null
    size_t workspace = 0;                      // the larger of the two
};

class Attention final : public CudnnAttention {
  public:
    Attention(cudnnHandle_t handle, cudaStream_t stream) : handle_(handle), stream_(stream) {}
    ~Attention() override {
        plans_.clear();
        cudnnDestroy(handle_);
    }

    bool build(const AttentionShape &s, bool backward_too, std::string &why) override {
        if (has(s) && (has_backward(s) || !backward_too)) return true;
        try {
            Plans plans;
            plans.forward = describe_forward(s);
            if (backward_too) plans.backward = describe_backward(s);
            for (Graph *graph : {plans.forward.get(), plans.backward.get()}) {
                if (!graph) continue;
                auto status = graph->build(handle_, {fe::HeurMode_t::A});
                if (status.is_bad()) {
                    why = std::string(graph == plans.forward.get() ? "forward: " : "backward: ") + one_line(status.get_message());
                    return false;
                }
                int64_t bytes = 0;
                if (graph->get_workspace_size(bytes).is_bad() || bytes < 0) {
                    why = "it does not tell its workspace";
                    return false;
                }
                plans.workspace = std::max(plans.workspace, size_t(bytes));
            }
            record_once(plans);
            plans_[s] = std::move(plans);
            return true;
        } catch (const std::exception &e) {  // the frontend throws when a descriptor can't be made
            why = one_line(e.what());
            return false;
        }
    }

    bool has(const AttentionShape &s) const override { return plans_.count(s) > 0; }
    bool has_backward(const AttentionShape &s) const override { return has(s) && plans_.at(s).backward; }

    size_t workspace_bytes(const AttentionShape &s) const override {
        const auto found = plans_.find(s);
        return found == plans_.end() ? 0 : found->second.workspace;
    }

    std::string forward(const AttentionShape &s, void *out, float *lse, const void *qkv, void *workspace) override {
        char *in = const_cast<char *>(static_cast<const char *>(qkv));
        const size_t part = size_t(s.C) * 2;  // bytes of a token's q, k or v
        std::unordered_map<int64_t, void *> pack = {{Q, in}, {K, in + part}, {V, in + 2 * part}, {OUT, out}, {STATS, lse}};
        return execute(*plans_.at(s).forward, pack, workspace);
    }

    std::string backward(const AttentionShape &s, void *dqkv, void *workspace, const void *dout, const void *qkv, const void *out,
                         const float *lse) override {
        char *in = const_cast<char *>(static_cast<const char *>(qkv)), *grad = static_cast<char *>(dqkv);
        const size_t part = size_t(s.C) * 2;
        std::unordered_map<int64_t, void *> pack = {{Q, in}, {K, in + part}, {V, in + 2 * part}, {OUT, const_cast<void *>(out)},
                                                    {STATS, const_cast<float *>(lse)}, {DOUT, const_cast<void *>(dout)},
                                                    {DQ, grad}, {DK, grad + part}, {DV, grad + 2 * part}};
        return execute(*plans_.at(s).backward, pack, workspace);
    }

  private:
    std::string execute(const Graph &graph, std::unordered_map<int64_t, void *> &pack, void *workspace) {
        auto status = graph.execute(handle_, pack, workspace);
        return status.is_bad() ? one_line(status.get_message()) : std::string();
    }

    static std::shared_ptr<Graph> empty_graph() {
        auto graph = std::make_shared<Graph>();
        graph->set_io_data_type(fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        return graph;
    }

    // cuDNN's order of dimensions is (B,NH,T,HS); a token's row holds `parts` times C values.
    static fe::graph::Tensor_attributes rows(Uid uid, const char *name, const AttentionShape &s, int parts) {
        const int64_t HS = s.C / s.NH, row = int64_t(parts) * s.C;
        fe::graph::Tensor_attributes tensor;
        tensor.set_name(name).set_uid(uid).set_dim({s.B, s.NH, s.T, HS}).set_stride({s.T * row, HS, row, 1});
        return tensor;
    }
    static fe::graph::Tensor_attributes stats(const AttentionShape &s) {
        fe::graph::Tensor_attributes tensor;
        tensor.set_name("lse").set_uid(STATS).set_dim({s.B, s.NH, s.T, 1}).set_stride({int64_t(s.NH) * s.T, s.T, 1, 1});
        tensor.set_data_type(fe::DataType_t::FLOAT);
        return tensor;
    }
    static void as_output(const TensorRef &tensor, const fe::graph::Tensor_attributes &like) {
        tensor->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
        if (like.get_data_type() != fe::DataType_t::NOT_SET) tensor->set_data_type(like.get_data_type());
    }
    static float scale(const AttentionShape &s) { return 1.0f / std::sqrt(float(s.C / s.NH)); }

    static std::shared_ptr<Graph> describe_forward(const AttentionShape &s) {
        auto graph = empty_graph();
        auto how = fe::graph::SDPA_attributes();
        how.set_name("attention_forward").set_generate_stats(true).set_attn_scale(scale(s));
        how.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);  // causal
        auto made = graph->sdpa(graph->tensor(rows(Q, "q", s, 3)), graph->tensor(rows(K, "k", s, 3)), graph->tensor(rows(V, "v", s, 3)), how);
        as_output(made[0], rows(OUT, "out", s, 1));
        as_output(made[1], stats(s));
        return graph;
    }

    static std::shared_ptr<Graph> describe_backward(const AttentionShape &s) {
        auto graph = empty_graph();
        auto how = fe::graph::SDPA_backward_attributes();
        how.set_name("attention_backward").set_attn_scale(scale(s)).set_deterministic_algorithm(s.deterministic);
        how.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
        auto made = graph->sdpa_backward(graph->tensor(rows(Q, "q", s, 3)), graph->tensor(rows(K, "k", s, 3)), graph->tensor(rows(V, "v", s, 3)),
                                         graph->tensor(rows(OUT, "out", s, 1)), graph->tensor(rows(DOUT, "dout", s, 1)), graph->tensor(stats(s)), how);
        as_output(made[0], rows(DQ, "dq", s, 3));
        as_output(made[1], rows(DK, "dk", s, 3));
        as_output(made[2], rows(DV, "dv", s, 3));
        return graph;
    }

    // Records both plans into a graph that is thrown away. Nothing runs, but their kernels get loaded, so
    // that a step captured later finds them. A failure here is no verdict: the step itself will tell.
    void record_once(const Plans &plans) {
        void *memory = nullptr;
        if (!stream_ || cudaMalloc(&memory, std::max<size_t>(plans.workspace, 4096)) != cudaSuccess) {
            cudaGetLastError();
            return;
        }
        std::unordered_map<int64_t, void *> pack;
        for (int64_t uid = Q; uid <= DV; uid++) pack[uid] = memory;
        cudaGraph_t recorded = nullptr;
        if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed) == cudaSuccess) {
            try {
                execute(*plans.forward, pack, memory);
                if (plans.backward) execute(*plans.backward, pack, memory);
            } catch (const std::exception &) {
            }
            cudaStreamEndCapture(stream_, &recorded);
        }
        if (recorded) cudaGraphDestroy(recorded);
        cudaFree(memory);
        cudaGetLastError();
    }

    cudnnHandle_t handle_;
    cudaStream_t stream_;
    std::map<AttentionShape, Plans> plans_;
};

}  // namespace

std::unique_ptr<CudnnAttention> CudnnAttention::open(cudaStream_t stream, std::string &why) {
    if (!cudnn_library(&why)) return nullptr;
    cudnnHandle_t handle = nullptr;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = cudnnSetStream(handle, stream);
        if (status == CUDNN_STATUS_SUCCESS) return std::make_unique<Attention>(handle, stream);
        cudnnDestroy(handle);
    }
    why = std::string(LLMC_CUDNN_LIBRARY ": ") + cudnnGetErrorString(status);
    return nullptr;
}

}  // namespace llmc

#else

namespace llmc {

std::unique_ptr<CudnnAttention> CudnnAttention::open(cudaStream_t, std::string &why) {
    why = "this build has no cuDNN support";
    return nullptr;
}

}  // namespace llmc

#endif
